"""The component `code2wav` of Qwen3-Omni: codec frames in, the waveform out.

What arrives all at once (a `Full` edge) is decoded as the model's own `chunked_decode` does. What
arrives while the talker runs is decoded chunk by chunk as a stream, without loss at any border; the
`context_frames` of an edge are not needed for that and are ignored. Requests are decoded one after the
other, a chunk at a time, so that a long answer does not hold up a short one. Samples are made where
they are read: in the slab, or on the device where the stage has room for tensors there.
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

import torch

from omnistage_common.errors import EngineFailed
from omnistage_common.ids import OutputName
from omnistage_common.payloads import ElementType, PayloadKind, TensorHeader
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs, Place
from omnistage_stage.engines.torch.components import ComponentSpec, require_ports
from omnistage_stage.engines.torch.conversion import fill, from_payload
from omnistage_stage.engines.torch.qwen3_omni.parts import load_code2wav
from omnistage_stage.engines.torch.qwen3_omni.vocoding import VocoderStream, whole
from omnistage_stage.engines.workers import Work, WorkerThreads

__all__ = ["Code2Wav"]

_CODES: Final = OutputName("codes")
_RATE_HZ: Final = 24_000
_FRAMES_AT_ONCE: Final = 300
"""A longer chunk is cut, so that a cancelled request is let go of soon."""


class Code2Wav:
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        require_ports(spec.spec, needed=(_CODES,), allowed=(_CODES,))
        self._spec = spec
        self._worker = WorkerThreads(name=f"code2wav-{spec.spec.stage}", size=1)
        self._vocoder: Any = None
        self._active = 0

    @property
    def active(self) -> int:
        """Requests that are being decoded."""
        return self._active

    async def load(self) -> None:
        """Loads the vocoder.

        Raises:
            InvalidWeights: The checkpoint lacks something.
        """
        self._vocoder = await self._worker.compute(self._load)

    async def probe(self) -> None:
        """Decodes two frames for real."""
        vocoder = self._loaded
        codes = torch.zeros(
            (2, vocoder.config.num_quantizers),
            dtype=torch.long,
            device=self._spec.placement.device,
        )
        samples = await self._worker.compute(lambda _work: VocoderStream(vocoder).decode(codes))
        if not samples.isfinite().all():
            raise EngineFailed("the vocoder made no sound of two frames when it was tried")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Decodes one answer.

        Raises:
            EngineFailed: The frames are not this model's, or there are none.
        """
        self._active += 1
        try:
            streamed = _CODES in request.streams
            frames = await (self._streamed if streamed else self._whole)(request, outputs)
        finally:
            self._active -= 1
        if not frames:
            raise EngineFailed("no codec frames came, so there is nothing to hear")
        return EngineResult(input_tokens=frames)

    async def close(self) -> None:
        """Ends the thread and frees the weights."""
        self._worker.close()
        self._vocoder = None

    @property
    def _loaded(self) -> Any:
        if self._vocoder is None:
            raise EngineFailed("the vocoder was used before it was loaded")
        return self._vocoder

    def _load(self, _work: Work) -> Any:
        self._spec.placement.enter()
        self._spec.checkpoint.require("code2wav_config")
        return load_code2wav(self._spec.checkpoint, self._spec.placement).code2wav

    async def _streamed(self, request: EngineRequest, outputs: Outputs) -> int:
        stream = VocoderStream(self._loaded)
        frames = 0
        async for codes in self._pieces(request):
            for chunk in codes.split(_FRAMES_AT_ONCE):
                await self._put(partial(_decode, stream, chunk), len(chunk), outputs)
            frames += len(codes)
        return frames

    async def _whole(self, request: EngineRequest, outputs: Outputs) -> int:
        pieces = [codes async for codes in self._pieces(request)]
        codes = torch.cat(pieces) if pieces else torch.empty((0, 0))
        windows = whole(self._loaded, codes)
        for start in range(0, len(codes), _FRAMES_AT_ONCE):
            frames = min(_FRAMES_AT_ONCE, len(codes) - start)
            await self._put(partial(_next, windows), frames, outputs)
        return len(codes)

    async def _pieces(self, request: EngineRequest) -> AsyncIterator[Any]:
        """The frames as they arrive, on the vocoder's device; none is empty."""
        async for piece in request.pieces(_CODES):
            codes = from_payload(piece)
            if codes.numel():
                self._check(codes)
                yield codes.to(self._spec.placement.device)

    async def _put(self, decode: Any, frames: int, outputs: Outputs) -> None:
        """Decodes frames to where their samples are read; there may be fewer than are made room for."""
        most = TensorHeader(
            element_type=ElementType.FLOAT32,
            shape=(frames * int(self._loaded.total_upsample),),
            rate_hz=_RATE_HZ,
        )
        room = await outputs.reserve(self._spec.output, PayloadKind.WAVEFORM, most, on_device=True)
        with room as place:
            made = await self._worker.compute(partial(_filled, decode, place))
            await place.seal(made)

    def _check(self, codes: Any) -> None:
        config = self._loaded.config
        if codes.dtype != torch.long or codes.ndim != 2 or codes.shape[1] != config.num_quantizers:  # noqa: PLR2004
            raise EngineFailed(
                f"codec frames came as {codes.dtype} {list(codes.shape)}; this vocoder takes int64 "
                f"with {config.num_quantizers} codes each"
            )
        low, high = int(codes.min()), int(codes.max())
        if low < 0 or high >= config.codebook_size:
            raise EngineFailed(
                f"a code is {low if low < 0 else high}; the codebook has {config.codebook_size}"
            )


def _decode(stream: VocoderStream, codes: Any) -> Any:
    return stream.decode(codes)


def _next(windows: Iterator[Any]) -> Any:
    return next(windows)


def _filled(decode: Any, place: Place, _work: Work) -> TensorHeader:
    return fill(place.data, decode(), rate_hz=_RATE_HZ)
