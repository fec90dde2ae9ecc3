"""The outputs that this engine offers by name, and how they go out.

A template asks for some of them; what nobody asked for is never made. Small pieces go out at once,
within the callback of the step that made them. A piece over `INLINE_LIMIT` (hidden states of a long
prompt) waits for room in the tensor slab in a task of its own; later pieces of the same output
wait behind it, other outputs do not.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec import Struct

from omnistage_common.errors import OmnistageError, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    INLINE_LIMIT,
    ElementType,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_stage.engines.protocol import EngineSpec, Outputs

__all__ = [
    "HIDDEN_STATES",
    "OFFERED",
    "PROMPT_HIDDEN_STATES",
    "PROMPT_POSITIONS",
    "PROMPT_TOKENS",
    "TEXT",
    "TOKENS",
    "Made",
    "asked_outputs",
    "delivering",
    "token_tensor",
]

TEXT: Final = OutputName("text")
PROMPT_TOKENS: Final = OutputName("prompt_tokens")
PROMPT_POSITIONS: Final = OutputName("prompt_positions")
TOKENS: Final = OutputName("tokens")
PROMPT_HIDDEN_STATES: Final = OutputName("prompt_hidden_states")
HIDDEN_STATES: Final = OutputName("hidden_states")

OFFERED: Final = {
    TEXT: PayloadKind.TEXT,
    PROMPT_TOKENS: PayloadKind.TOKENS,
    PROMPT_POSITIONS: PayloadKind.TOKENS,
    TOKENS: PayloadKind.TOKENS,
    PROMPT_HIDDEN_STATES: PayloadKind.HIDDEN_STATES,
    HIDDEN_STATES: PayloadKind.HIDDEN_STATES,
}

_ALWAYS_SMALL: Final = frozenset({TEXT, TOKENS})


class Made(Struct, frozen=True, kw_only=True):
    """What a request got in one step, or, before its first step, from its prompt alone."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    """Sampled ids, with the one that ends the answer."""
    prompt_tokens: Sequence[int] = ()
    """Ids of the whole prompt."""
    prompt_positions: Tensor | None = None
    """Where the tokens of the prompt stand: int64 [tokens, 3]."""
    prompt_rows: Tensor | None = None
    """Hidden states of the whole prompt, once it is read."""
    rows: Tensor | None = None
    """Hidden states of generated tokens that were fed back, in order."""


def asked_outputs(spec: EngineSpec) -> frozenset[OutputName]:
    """The outputs that the template asks for.

    Raises:
        SetupError: One has a name or a kind that this engine does not offer, or there is none.
    """
    strange = {name: kind for name, kind in spec.produces.items() if OFFERED.get(name) is not kind}
    if strange or not spec.produces:
        asked = ", ".join(f"{name} ({kind.value})" for name, kind in strange.items())
        offered = ", ".join(f"{name} ({kind.value})" for name, kind in OFFERED.items())
        raise SetupError(
            f"stage {spec.stage} produces {asked or 'nothing'} by its template; "
            f"its engine offers {offered}",
            field="produces",
        )
    return frozenset(spec.produces)


def token_tensor(tokens: Sequence[int]) -> Tensor:
    """Token ids as a tensor: int64 [n]."""
    header = TensorHeader(element_type=ElementType.INT64, shape=(len(tokens),))
    return Tensor(header=header, data=struct.pack(f"<{len(tokens)}q", *tokens))


@asynccontextmanager
async def delivering(
    asked: frozenset[OutputName], outputs: Outputs
) -> AsyncIterator[Callable[[Made], None]]:
    """A function that hands over what is made; on leaving, everything has been handed over.

    An answer in which nothing is said still has its text: one empty piece.

    Args:
        asked: The outputs to hand over; others are dropped.
        outputs: Where they go.

    Raises:
        DeadlineExceeded: There was no room for a large piece before the request's deadline.
        OmnistageError: What the block raised.
    """
    delivery = _Delivery(asked, outputs)
    if asked <= _ALWAYS_SMALL:
        yield delivery.accept
        delivery.end()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(delivery.put_waiting())
            yield delivery.accept
            delivery.end()
    except* OmnistageError as failed:
        raise failed.exceptions[0] from None


class _Delivery:
    """The outputs of one request on their way."""

    def __init__(self, asked: frozenset[OutputName], outputs: Outputs) -> None:
        self._asked = asked
        self._outputs = outputs
        self._waiting: deque[tuple[OutputName, Payload]] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._said = False

    def accept(self, made: Made) -> None:
        """Hands over what was made, or keeps it until there is room."""
        if made.prompt_tokens:
            self._hand(PROMPT_TOKENS, token_tensor(made.prompt_tokens))
        if made.prompt_positions is not None:
            self._hand(PROMPT_POSITIONS, made.prompt_positions)
        if made.prompt_rows is not None:
            self._hand(PROMPT_HIDDEN_STATES, made.prompt_rows)
        if made.rows is not None:
            self._hand(HIDDEN_STATES, made.rows)
        if made.tokens and TOKENS in self._asked:
            self._hand(TOKENS, token_tensor(made.tokens))
        if made.text:
            self._say(made.text)

    def end(self) -> None:
        """Says that nothing more will be made."""
        if not self._said:
            self._say("")
        self._ended = True
        self._news.set()

    async def put_waiting(self) -> None:
        """Hands over what needs room, in order, until the end."""
        while True:
            while self._waiting:
                name, payload = self._waiting[0]
                await self._outputs.put(name, payload)
                self._waiting.popleft()
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()

    def _say(self, text: str) -> None:
        self._said = True
        if TEXT in self._asked:
            self._outputs.emit(TEXT, Payload(kind=PayloadKind.TEXT, content=text))

    def _hand(self, name: OutputName, tensor: Tensor) -> None:
        if name not in self._asked:
            return
        payload = Payload(kind=OFFERED[name], content=tensor)
        if tensor.header.length > INLINE_LIMIT or any(name == other for other, _ in self._waiting):
            self._waiting.append((name, payload))
            self._news.set()
        else:
            self._outputs.emit(name, payload)
