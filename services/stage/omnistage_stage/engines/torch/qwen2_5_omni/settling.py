"""How much of a spectrogram is certain while codes are still coming, and when to compute it.

The flow's network attends to whole blocks of frames: each to itself, in a few layers to the one before,
in others to the one after. So with every evaluation a block depends on one block more ahead of it, and
after all evaluations on `look_ahead` blocks: with `generate`'s ten points in time and the published
model's one layer that looks ahead, 36 blocks, which are 432 codes, 8.64 s of speech. Further ahead
there is nothing that a block depends on. What is that far from the last known code is settled: the
flow over the codes known so far gives it the values that the flow over all of them will.

Every such early flow starts over from the first code. They are therefore made rarely: when the settled
part is worth a window of the vocoder, and then whenever half as many codes again are known. That keeps
the work for an answer of any length within a small multiple of the one flow at its end.

Whether they are the same to the last bit is up to the kernels: those of a CPU treat the last rows of
their input otherwise than the others, and a short input otherwise than a long one. Flows are cut where
that happens least; `docs/explanation/exactness.md` says what remains.
"""

from typing import Final

from msgspec import Struct

__all__ = ["Settling"]

_GROUP: Final = 48
"""Rows that kernels treat together, or a multiple of it."""
_GROWTH: Final = 1.5


class Settling(Struct, frozen=True, kw_only=True):
    """The measures of a model."""

    block: int
    """Frames."""
    repeats: int
    """Frames per code."""
    look_ahead: int
    """Blocks."""
    context: int
    """Frames beyond its own that the vocoder needs for a part."""
    window: int
    """Settled frames that make a first flow worth while."""

    def settled(self, codes: int) -> int:
        """Frames that no further code can change."""
        return max(0, codes * self.repeats // self.block - self.look_ahead) * self.block

    def next_flow(self, known: int, last: int) -> int:
        """Codes of which a flow shall be made now.

        Args:
            known: Codes that have come; there may be more.
            last: Codes of the flow before, 0 if there was none.

        Returns:
            As many as that flow shall have; 0: wait for more.
        """
        group = max(1, _GROUP // self.repeats)
        codes = known - known % group
        settled = self.settled(codes)
        if settled <= self.context or settled < self.window or codes < _GROWTH * last:
            return 0
        return codes
