"""One request of the talker: what is known of its text, and what can be done with it now.

The talker adds one row of text to every step: the answer's tokens in order, then one that ends the
text, then padding. The last token that the thinker generated is not spoken, as it never went through
the thinker: `generate` leaves it out, whatever it is. So a token can be used when the next one is
known, or when it is known that there are more. Where the talker is faster than the thinker, it waits;
it never pads a text that is not finished. That is why the pace at which tokens come changes nothing.

A producer hands over the prompt before the first token. On a stream edge nothing says that a prompt is
whole before the producer ends, so there it is whole when the answer has begun; one that goes on after
that comes from an edge that cuts it into chunks, and is an error.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

from omnistage_common.errors import EngineFailed
from omnistage_stage.engines.torch.qwen3_omni.prompting import Prompt, SpecialTokens
from omnistage_stage.engines.torch.speech import SpeechJob, SpeechRequest, TextEnd

__all__ = ["HIDDEN", "POSITIONS", "PROMPT", "TOKENS", "Speech"]

PROMPT: Final = "prompt_tokens"
HIDDEN: Final = "prompt_hidden_states"
POSITIONS: Final = "prompt_positions"
TOKENS: Final = "tokens"

_OPENING: Final = 4
"""Tokens of the assistant's turn that the prefill reads: three of its head, one of text."""


class Speech(SpeechJob):
    """One request within the thread."""

    def __init__(self, request: SpeechRequest, special: SpecialTokens) -> None:
        super().__init__(request)
        self._special = special
        self._tokens: list[int] = []
        self._hidden: list[Any] = []
        self._positions: list[Any] = []
        self._open = set(request.ports)
        self._prompt: Prompt | None = None
        self._turn: list[int] = []
        """The assistant's turn as far as it is known: the end of the prompt, then the answer."""

    def feed(self, port: str, rows: Any) -> None:
        """See `Job.feed`."""
        if port == TOKENS:
            self._turn.extend(rows)
        elif port == PROMPT:
            self._tokens.extend(rows)
        else:
            (self._hidden if port == HIDDEN else self._positions).append(rows)
        if self._prompt is None:
            self._complete_prompt()
        elif port == PROMPT and rows:
            raise EngineFailed(
                f"more of `{PROMPT}` came after the answer had begun; the edge that brings it must "
                "have chunks of 1"
            )

    def exhaust(self, port: str) -> None:
        """See `Job.exhaust`."""
        self._open.discard(port)
        if self._prompt is None:
            self._complete_prompt()
        if self._prompt is None and not self._open:
            raise EngineFailed(f"the producer has ended without all of `{PROMPT}`")
        if self._prompt is not None and TOKENS not in self._open and len(self._turn) <= _OPENING:
            raise EngineFailed("the answer has no text, so there is nothing to speak")

    @property
    def ready(self) -> bool:
        """Whether a step can advance it now."""
        if self.end is not None or self._prompt is None:
            return False
        if self.state is None:
            return self._can_begin()
        return self.row(self.frames - 1) is not None

    @property
    def prompt(self) -> Prompt:
        """What precedes the answer, all of it."""
        if self._prompt is None:
            raise EngineFailed("the prompt is not complete")
        return self._prompt

    @property
    def opening(self) -> Sequence[int]:
        """The first tokens of the assistant's turn, up to the first of the text."""
        return self._turn[:_OPENING]

    def row(self, index: int) -> int | TextEnd | None:
        """The text that goes with a decoding step.

        Args:
            index: Counts the steps after the prefill from 0.

        Returns:
            A token, what stands for the end, or None: it is not known yet.
        """
        place = _OPENING + index
        if place + 1 < len(self._turn):
            return self._turn[place]
        if TOKENS in self._open:
            return None
        return TextEnd.END if place + 1 == len(self._turn) else TextEnd.PAD

    def _can_begin(self) -> bool:
        # A first token that stops the answer is its last, and is not spoken.
        return len(self._turn) > _OPENING or (
            len(self._turn) == _OPENING and self._turn[-1] != self._special.stop
        )

    def _complete_prompt(self) -> None:
        if not self._tokens or not self._is_whole():
            return
        prompt = Prompt(
            tokens=tuple(self._tokens),
            hidden=_joined(self._hidden),
            positions=_joined(self._positions),
        )
        self._turn[:0] = prompt.tokens[prompt.assistant_start(self._special) :]
        self._prompt = prompt
        self._tokens, self._hidden, self._positions = [], [], []

    def _is_whole(self) -> bool:
        """Whether all of the prompt is there.

        Raises:
            EngineFailed: It never will be.
        """
        if PROMPT in self._open and (PROMPT not in self.request.streamed or not self._turn):
            return False
        return (not self._has(self._special.media) or self._has_rows(HIDDEN, self._hidden)) and (
            not self._has(self._special.placed) or self._has_rows(POSITIONS, self._positions)
        )

    def _has(self, tokens: Sequence[int]) -> bool:
        return not set(tokens).isdisjoint(self._tokens)

    def _has_rows(self, port: str, pieces: Sequence[Any]) -> bool:
        rows = sum(len(piece) for piece in pieces)
        if rows < len(self._tokens) and port not in self._open:
            raise EngineFailed(
                f"the prompt has pictures or sounds and {len(self._tokens)} tokens; `{port}` has "
                f"{rows} rows, and the talker needs one for each"
            )
        return rows >= len(self._tokens)


def _joined(pieces: list[Any]) -> Any:
    return torch.cat(pieces) if pieces else None
