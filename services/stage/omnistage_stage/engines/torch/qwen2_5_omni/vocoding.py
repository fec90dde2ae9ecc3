"""A spectrogram to a waveform, whole or in parts.

The vocoder is convolutions all through, so a sample depends on a bounded number of frames on either
side, and a part can be computed from a window with that many more on both sides.

Whether the part then has the very bits of the whole is up to the kernels, which torch chooses by the
size of their input. On a CPU those for few elements are others than those for many, and the narrowest
input is the spectrogram itself. Windows are therefore wide enough to get the same ones as any longer
spectrogram; `docs/explanation/exactness.md` says what that achieves.
"""

from math import ceil
from typing import Any, Final

import torch

__all__ = ["Vocoder"]

_FEW: Final = 20_480
"""Elements of a convolution's input up to which torch takes its own kernel on one thread, and
oneDNN's above (`use_mkldnn` in ATen's Convolution.cpp)."""
_ALIGNMENT: Final = 8
"""Frames; windows begin at multiples of it, as the columns that a kernel treats together do."""
_FILTER: Final = 6
"""Samples on either side that an anti-aliased activation looks at: half its filter of 12 at twice the
rate, once up and once down."""


class Vocoder:
    """Makes waveforms; for the thread that computes."""

    def __init__(self, bigvgan: Any) -> None:
        """Takes a `Qwen2_5OmniToken2WavBigVGANModel`."""
        self._model = bigvgan
        self.hop = 1
        """Samples per frame."""
        for rate in bigvgan.config.upsample_rates:
            self.hop *= rate
        self.context = _context(bigvgan.config)
        """Frames on either side that a sample depends on."""
        self.window = ceil((_FEW + 1) / bigvgan.config.mel_dim / _ALIGNMENT) * _ALIGNMENT
        """Frames that a window has at least, where there are as many."""

    def part(self, spectrogram: Any, start: int, end: int) -> Any:
        """The samples of some frames.

        Args:
            spectrogram: float32 [1, mel bins, frames]; from frame 0 on.
            start: First frame of the part.
            end: The frame after its last; `context` before that of the spectrogram, unless that
                is complete.

        Returns:
            float32 [(end - start) * hop], on the CPU.
        """
        begin = max(0, min(start - self.context, spectrogram.shape[-1] - self.window))
        begin -= begin % _ALIGNMENT
        with torch.inference_mode():
            samples = self._model(spectrogram[..., begin:].contiguous()).reshape(-1)
        return samples[(start - begin) * self.hop : (end - begin) * self.hop].float()


def _context(config: Any) -> int:
    """Frames on either side that a sample depends on, from the last layer to the first."""
    reach = 3 + _FILTER
    layers = zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True)
    blocks = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
    for rate, kernel in reversed(list(layers)):
        reach += max(_block_reach(size, dilations) for size, dilations in blocks)
        reach = ceil((reach + kernel / 2) / rate) + 1
    return reach + 3


def _block_reach(size: int, dilations: list[int]) -> int:
    half = size // 2
    return sum(half * dilation + half + 2 * _FILTER for dilation in dilations)
