"""One request of any family's talker: how it wants to be spoken, and what has come of it so far.

What the text is made of and when a step can go on differ between the families, which say so in
subclasses of `SpeechJob`. How speech grows, ends and gives back its memory does not, and stands here.
"""

from enum import Enum
from typing import Any

from msgspec import Struct

from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineResult, FinishReason
from omnistage_stage.engines.torch.conversion import to_payload
from omnistage_stage.engines.torch.slots import SlotCache
from omnistage_stage.engines.torch.stepping import Job

__all__ = ["SpeechJob", "SpeechRequest", "SpeechState", "TextEnd"]


class TextEnd(Enum):
    """What stands in place of a row of text when the text is over."""

    END = "end"
    PAD = "pad"


class SpeechRequest(Struct, frozen=True, kw_only=True):
    """How one request wants to be spoken."""

    speaker: int
    """Id of the voice: of a text token or a code, as the family has it."""
    generator: Any
    """Where its draws come from."""
    max_frames: int
    ports: frozenset[str]
    """Ports at which something will arrive."""
    streamed: frozenset[str]
    """Those of them at which it arrives while the producer runs."""


class SpeechState:
    """What a model keeps for one request. A family adds what its next step needs."""

    def __init__(self, cache: Any, position: int, seen: Any) -> None:
        self.cache = cache
        """The request's own cache; None where it has a slot."""
        self.slot: int | None = None
        self.position = position
        """Of the next step, in all dimensions."""
        self.seen = seen
        """First (or only) codes of the frames so far, bool [vocabulary]."""
        self._slots: SlotCache | None = None

    def move_to(self, slots: SlotCache) -> None:
        """Moves the request's cache into a slot."""
        self.slot = slots.occupy(self.cache)
        self.cache = None
        self._slots = slots

    def release(self) -> None:
        """Gives back the slot."""
        self.cache = None
        if self._slots is not None and self.slot is not None:
            self._slots.vacate(self.slot)


class SpeechJob(Job):
    """One request within the thread."""

    def __init__(self, request: SpeechRequest) -> None:
        super().__init__()
        self.request = request
        self.frames = 0
        """Frames made."""
        self.input_tokens = 0
        """Rows that the prefill read."""
        self.state: Any = None
        """The family's `SpeechState`; None: the model has not read the prompt."""

    def say(self, frame: Any) -> None:
        """Takes the next frame, int64 [1, codes]; ends if it is the last that may be.

        Args:
            frame: On the CPU.
        """
        self.frames += 1
        self.made.append(to_payload(frame, PayloadKind.CODEC_FRAMES))
        if self.frames == self.request.max_frames:
            self.finish(FinishReason.LENGTH)

    def finish(self, reason: FinishReason) -> None:
        """Ends the speech with the frames that there are."""
        self.end = EngineResult(
            finish_reason=reason, input_tokens=self.input_tokens, output_tokens=self.frames
        )

    def leave(self) -> None:
        """Lets go of everything."""
        state, self.state = self.state, None
        if state is not None:
            state.release()
