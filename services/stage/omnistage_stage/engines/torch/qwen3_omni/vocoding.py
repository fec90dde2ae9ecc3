"""Qwen3-Omni's vocoder, whole or as a stream.

Whole is as in `Qwen3OmniMoeCode2Wav.chunked_decode`, bit for bit: windows of 300 frames, each with 25
frames before it. Up to 300 frames that is one forward over everything.

As a stream it keeps what later frames look back at, and computes every sample once: keys and values
of the transformer's sliding window, the last inputs of every causal convolution, and the last input of
every transposed convolution, whose output overlaps with the next one's. So there is no left context to
choose and no seam, wherever chunks begin and end; put together they are the one forward over all
frames. (Decoding windows with 25 frames of context is not: each of the transformer's layers looks back
72 frames, and each window loses its last samples.) Convolutions and attention choose their kernels by
the length of their input, so the last bits of a sample may differ from the one forward's;
`docs/explanation/exactness.md` says by how much.

The first frame gives fewer samples than the others: the transposed convolutions cut their first
outputs. That is the model's, and the same in both.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from transformers import DynamicCache

__all__ = ["VocoderStream", "whole"]

_WINDOW: Final = 300
_CONTEXT: Final = 25
"""Frames; both as in `generate`."""


def whole(vocoder: Any, codes: Any) -> Iterator[Any]:
    """The samples of all frames, window by window.

    Args:
        vocoder: A `Qwen3OmniMoeCode2Wav`.
        codes: int64 [frames, groups].

    Yields:
        float32 [samples], on the vocoder's device.
    """
    rows = codes.T.unsqueeze(0)
    for start in range(0, rows.shape[-1], _WINDOW):
        context = min(start, _CONTEXT)
        with torch.inference_mode():
            samples = vocoder(rows[..., start - context : start + _WINDOW])
        yield samples[0, 0, context * int(vocoder.total_upsample) :].float()


class VocoderStream:
    """The vocoder on its way through the frames of one request."""

    def __init__(self, vocoder: Any) -> None:
        self._vocoder = vocoder
        self._cache = DynamicCache(config=vocoder.pre_transformer.config)
        self._tails: dict[Any, Any] = {}
        """Module -> the last columns of what it was given, [1, channels, columns]."""

    def decode(self, codes: Any) -> Any:
        """The samples that these frames complete.

        Args:
            codes: int64 [frames, groups], at least one frame; those that follow what was decoded
                before.

        Returns:
            float32 [samples], on the vocoder's device.
        """
        with torch.inference_mode():
            return self._decode(codes)

    def _decode(self, codes: Any) -> Any:
        vocoder = self._vocoder
        rows = vocoder.code_embedding(codes.T.unsqueeze(0) + vocoder.code_offset).mean(1)
        signal = vocoder.pre_transformer(
            inputs_embeds=rows, past_key_values=self._cache, use_cache=True
        ).last_hidden_state.permute(0, 2, 1)
        for widen, block in vocoder.upsample:
            signal = self._mix(block, self._transposed(widen, signal))
        first, *blocks, activation, last = vocoder.decoder
        signal = self._causal(first, signal)
        for block in blocks:
            signal = self._widen(block.block, signal)
        signal = self._causal(last, activation(signal))
        return signal.clamp(min=-1, max=1)[0, 0].float()

    def _causal(self, module: Any, signal: Any) -> Any:
        """A causal convolution; before the first column it sees zeros."""
        if not module.padding:
            return module.conv(signal)
        tail = self._tails.get(module)
        if tail is None:
            tail = signal.new_zeros((*signal.shape[:-1], module.padding))
        joined = torch.cat((tail, signal), dim=-1)
        self._tails[module] = joined[..., -module.padding :].clone()
        return module.conv(joined)

    def _transposed(self, module: Any, signal: Any) -> Any:
        """A transposed convolution, whose kernel is as long as its stride, or twice as long.

        A column's output is added to the next one's first half. The module cuts off the first column's
        first half and the last column's second; with the column before put in front, what is left is
        exactly what these columns complete.
        """
        if not module.left_pad:
            return module(signal)
        tail = self._tails.get(module)
        self._tails[module] = signal[..., -1:].clone()
        return module(signal if tail is None else torch.cat((tail, signal), dim=-1))

    def _widen(self, block: Any, signal: Any) -> Any:
        activation, transposed, *units = block
        signal = self._transposed(transposed, activation(signal))
        for unit in units:
            inner = self._causal(unit.conv1, unit.act1(signal))
            signal = self._causal(unit.conv2, unit.act2(inner)) + signal
        return signal

    def _mix(self, block: Any, signal: Any) -> Any:
        """A ConvNeXt block: over time by a causal convolution, then over channels."""
        inner = self._causal(block.dwconv, signal).permute(0, 2, 1)
        inner = block.pwconv2(block.act(block.pwconv1(block.norm(inner))))
        return signal + (block.gamma * inner).permute(0, 2, 1)
