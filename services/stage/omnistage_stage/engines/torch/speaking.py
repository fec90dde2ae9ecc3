"""How a talker of any family steps the speech of many requests: one by one, or together.

It is a choice (`batching`). `exact`: one after the other, each with the calls that transformers makes
for it alone, so that nothing can make a difference. `padded`: in one forward over a `SlotCache`;
matrix products of another shape may then round the last bit another way. Prefill is always per
request. What a step computes is the family's, in a subclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from omnistage_stage.engines.torch.slots import SlotCache
from omnistage_stage.engines.torch.speech import SpeechJob, SpeechState

__all__ = ["BatchingSpeaker"]

S = TypeVar("S", bound=SpeechJob)


class BatchingSpeaker(ABC, Generic[S]):
    """A talker as a `Stepper` of speech.

    Args:
        slots: How many requests there may be, for `padded`; None: `exact`.
    """

    def __init__(self, *, slots: int | None) -> None:
        self._slots = None if slots is None else SlotCache(slots=slots)

    @property
    def slots(self) -> int:
        """Slots that requests have."""
        return 0 if self._slots is None else self._slots.occupied

    def step(self, jobs: Sequence[S]) -> None:
        """Makes the next frame of every one of these, or its end."""
        with torch.inference_mode():
            if self._slots is not None:
                self._step(jobs)
                return
            for job in jobs:
                self._step([job])

    def close(self) -> None:
        """Frees the model."""
        self._slots = None

    @abstractmethod
    def _step(self, jobs: Sequence[S]) -> None:
        """Steps these jobs together. Those without a state have yet to read their prompt."""

    def _keep(self, job: S, state: SpeechState) -> None:
        """Gives a job what the prefill left behind, in a slot where there are any."""
        job.state = state
        if self._slots is not None:
            state.move_to(self._slots)

    def _advance(self, jobs: Sequence[S], device: Any) -> tuple[Any, Any, Any]:
        """Moves these jobs one position on.

        Returns:
            The positions of this step [jobs, 1], the cache for all of them and its mask (or None).
        """
        places = torch.tensor([[job.state.position] for job in jobs], device=device)
        for job in jobs:
            job.state.position += 1
        if self._slots is None:
            return places, jobs[0].state.cache, None
        cache = self._slots.step([job.state.slot for job in jobs])
        return places, cache, cache.mask
