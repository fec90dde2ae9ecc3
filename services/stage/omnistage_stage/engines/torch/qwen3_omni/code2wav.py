"""The component `code2wav` of Qwen3-Omni: codec frames in, the waveform out.

What arrives all at once (a `Full` edge) is decoded as the model's own `chunked_decode` does. What
arrives while the talker runs is decoded chunk by chunk as a stream, without loss at any border; the
`context_frames` of an edge are not needed for that and are ignored. Requests are decoded one after the
other, a chunk at a time, so that a long answer does not hold up a short one.
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

import torch
from msgspec import Struct

from omnistage_common.errors import EngineFailed
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs
from omnistage_stage.engines.torch.components import ComponentSpec, require_ports
from omnistage_stage.engines.torch.conversion import from_payload, to_payload
from omnistage_stage.engines.torch.qwen3_omni.parts import load_code2wav
from omnistage_stage.engines.torch.qwen3_omni.vocoding import VocoderStream, whole
from omnistage_stage.engines.torch.staging import HostBuffer, StagingPool
from omnistage_stage.engines.workers import Work, WorkerThreads

__all__ = ["Code2Wav"]

_CODES: Final = OutputName("codes")
_RATE_HZ: Final = 24_000
_FRAMES_AT_ONCE: Final = 300
"""A longer chunk is cut, so that a cancelled request is let go of soon."""
_BUFFERS: Final = 4


class _Loaded(Struct, frozen=True, kw_only=True):
    """What there is after `load`."""

    vocoder: Any
    staging: StagingPool


class Code2Wav:
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        require_ports(spec.spec, needed=(_CODES,), allowed=(_CODES,))
        self._spec = spec
        self._worker = WorkerThreads(name=f"code2wav-{spec.spec.stage}", size=1)
        self._model: _Loaded | None = None
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
        vocoder = await self._worker.compute(self._load)
        largest = _FRAMES_AT_ONCE * int(vocoder.total_upsample)
        staging = StagingPool(
            count=min(_BUFFERS, self._spec.spec.max_running),
            size=largest * torch.float32.itemsize,
            pinned=not self._spec.placement.on_cpu,
        )
        self._model = _Loaded(vocoder=vocoder, staging=staging)

    async def probe(self) -> None:
        """Decodes two frames for real."""
        vocoder = self._loaded.vocoder
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
        self._model = None

    @property
    def _loaded(self) -> _Loaded:
        if self._model is None:
            raise EngineFailed("the vocoder was used before it was loaded")
        return self._model

    def _load(self, _work: Work) -> Any:
        self._spec.placement.enter()
        self._spec.checkpoint.require("code2wav_config")
        return load_code2wav(self._spec.checkpoint, self._spec.placement).code2wav

    async def _streamed(self, request: EngineRequest, outputs: Outputs) -> int:
        stream = VocoderStream(self._loaded.vocoder)
        frames = 0
        async for codes in self._pieces(request):
            for chunk in codes.split(_FRAMES_AT_ONCE):
                await self._put(partial(_decode, stream, chunk), outputs)
            frames += len(codes)
        return frames

    async def _whole(self, request: EngineRequest, outputs: Outputs) -> int:
        pieces = [codes async for codes in self._pieces(request)]
        codes = torch.cat(pieces) if pieces else torch.empty((0, 0))
        windows = whole(self._loaded.vocoder, codes)
        for _ in range(0, len(codes), _FRAMES_AT_ONCE):
            await self._put(partial(_next, windows), outputs)
        return len(codes)

    async def _pieces(self, request: EngineRequest) -> AsyncIterator[Any]:
        """The frames as they arrive, on the vocoder's device; none is empty."""
        async for piece in request.pieces(_CODES):
            codes = from_payload(piece)
            if codes.numel():
                self._check(codes)
                yield codes.to(self._spec.placement.device)

    async def _put(self, decode: Any, outputs: Outputs) -> None:
        async with self._loaded.staging.lend() as buffer:
            samples = await self._worker.compute(partial(_held, decode, buffer))
            await outputs.put(
                self._spec.output, to_payload(samples, PayloadKind.WAVEFORM, rate_hz=_RATE_HZ)
            )

    def _check(self, codes: Any) -> None:
        config = self._loaded.vocoder.config
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


def _held(decode: Any, buffer: HostBuffer, _work: Work) -> Any:
    return buffer.hold(decode())
