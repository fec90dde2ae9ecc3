"""One request of the talker: what is known of its text, and what can be done with it now.

The talker adds one row to every step: the answer's tokens in order with the hidden states that the
thinker made of them, then one that ends the text, then padding. The last token that the thinker
generated is not spoken, as it never went through the thinker and has no hidden state. Where the talker
is faster than the thinker, it waits; it never pads a text that is not finished. That is why the pace
at which rows come changes nothing.

A producer hands over the prompt before the first token. On a stream edge nothing says that a prompt is
whole before the producer ends, so there it is whole when the answer has begun; one that goes on after
that comes from an edge that cuts it into chunks, and is an error.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from omnistage_common.errors import EngineFailed
from omnistage_stage.engines.torch.qwen2_5_omni.prompting import Prompt, Row, SpecialTokens
from omnistage_stage.engines.torch.speech import SpeechJob, SpeechRequest, TextEnd

__all__ = [
    "ANSWER_HIDDEN",
    "POSITIONS",
    "PROMPT",
    "PROMPT_HIDDEN",
    "TOKENS",
    "Speech",
]

PROMPT: Final = "prompt_tokens"
PROMPT_HIDDEN: Final = "prompt_hidden_states"
POSITIONS: Final = "prompt_positions"
TOKENS: Final = "tokens"
ANSWER_HIDDEN: Final = "hidden_states"

_IDS: Final = (PROMPT, TOKENS)
_ROWS: Final = (PROMPT_HIDDEN, ANSWER_HIDDEN)


class Speech(SpeechJob):
    """One request within the thread."""

    def __init__(self, request: SpeechRequest, special: SpecialTokens) -> None:
        super().__init__(request)
        self._special = special
        self._open = set(request.ports)
        self._prompt: Prompt | None = None
        self._prompt_tokens: list[int] = []
        self._prompt_hidden: list[Any] = []
        self._positions: list[Any] = []
        self._tokens: list[int] = []
        self._hidden: list[Any] = []
        """Of the answer, row by row."""

    def feed(self, port: str, rows: Any) -> None:
        """See `Job.feed`."""
        self._check(port, rows)
        if self._prompt is not None and port == PROMPT and rows:
            raise EngineFailed(
                f"more of `{PROMPT}` came after the answer had begun; the edge that brings it must "
                "have chunks of 1"
            )
        match port:
            case "prompt_tokens":
                self._prompt_tokens.extend(rows)
            case "prompt_hidden_states":
                self._prompt_hidden.append(rows)
            case "prompt_positions":
                self._positions.append(rows)
            case "tokens":
                self._tokens.extend(rows)
            case "hidden_states":
                self._hidden.extend(rows.unbind())
        self._complete_prompt()

    def exhaust(self, port: str) -> None:
        """See `Job.exhaust`."""
        self._open.discard(port)
        self._complete_prompt()
        if self._prompt is None and not self._open:
            raise EngineFailed(f"the producer has ended without all of the prompt (`{PROMPT}`)")
        if self._open.isdisjoint((TOKENS, ANSWER_HIDDEN)):
            self._check_answer()

    @property
    def ready(self) -> bool:
        """Whether a step can advance it now."""
        if self.end is not None or self._prompt is None:
            return False
        return isinstance(self._row(0), Row) if self.state is None else self.next_row is not None

    @property
    def prompt(self) -> Prompt:
        """What precedes the answer, all of it."""
        if self._prompt is None:
            raise EngineFailed("the prompt is not complete")
        return self._prompt

    @property
    def first_row(self) -> Row:
        """The answer's first row, which the prefill reads."""
        return Row(self._tokens[0], self._hidden[0])

    @property
    def next_row(self) -> Row | TextEnd | None:
        """The row that goes with the next step after the prefill; None: it is not known yet."""
        return self._row(self.frames)

    def _row(self, index: int) -> Row | TextEnd | None:
        if index < min(len(self._tokens), len(self._hidden)):
            return Row(self._tokens[index], self._hidden[index])
        if ANSWER_HIDDEN in self._open or index < len(self._hidden):
            return None
        return TextEnd.END if index == len(self._hidden) else TextEnd.PAD

    def _complete_prompt(self) -> None:
        if self._prompt is not None or not self._prompt_tokens or not self._is_whole():
            return
        self._prompt = Prompt(
            tokens=tuple(self._prompt_tokens),
            hidden=_joined(self._prompt_hidden),
            positions=_joined(self._positions),
        )
        count = len(self._prompt_tokens)
        if self._prompt.hidden is None or len(self._prompt.hidden) < count:
            raise EngineFailed(f"`{PROMPT_HIDDEN}` has fewer rows than the prompt's {count} tokens")
        if self._has_pictures() and (
            self._prompt.positions is None or len(self._prompt.positions) < count
        ):
            raise EngineFailed(
                f"the prompt has pictures; the talker needs `{POSITIONS}` for all of it"
            )
        self._prompt_hidden, self._positions = [], []

    def _is_whole(self) -> bool:
        if PROMPT in self._open and (PROMPT not in self.request.streamed or not self._tokens):
            return False
        if not self._has_all(PROMPT_HIDDEN, self._prompt_hidden):
            return False
        return not self._has_pictures() or self._has_all(POSITIONS, self._positions)

    def _has_pictures(self) -> bool:
        return not set(self._special.placed).isdisjoint(self._prompt_tokens)

    def _has_all(self, port: str, pieces: Sequence[Any]) -> bool:
        """Whether there are rows for the whole prompt, or there never will be."""
        rows = sum(len(piece) for piece in pieces)
        return port not in self._open or rows >= len(self._prompt_tokens)

    def _check(self, port: str, rows: Any) -> None:
        """Refuses what would end the thread, and with it everybody's requests."""
        special = self._special
        if port in _IDS and rows and not 0 <= min(rows) <= max(rows) < special.vocabulary:
            raise EngineFailed(f"`{port}` has ids that are none of the {special.vocabulary} known")
        width = special.width if port in _ROWS else 3
        if port not in _IDS and rows.shape[1] != width:
            raise EngineFailed(f"`{port}` has rows of {rows.shape[1]}; the talker reads {width}")

    def _check_answer(self) -> None:
        if not self._hidden:
            raise EngineFailed("the answer has no text, so there is nothing to speak")
        if len(self._tokens) != len(self._hidden) + 1:
            raise EngineFailed(
                f"the answer came as {len(self._tokens)} `{TOKENS}` and {len(self._hidden)} "
                f"`{ANSWER_HIDDEN}`; there is one less of these, as the last token has none"
            )


def _joined(pieces: list[Any]) -> Any:
    return torch.cat(pieces) if pieces else None
