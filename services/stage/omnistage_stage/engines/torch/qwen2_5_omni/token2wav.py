"""The component `token2wav` of Qwen2.5-Omni: speech codes in, the waveform out.

The waveform is that of the model's own `token2wav`, with the noise that it draws when torch's own
generator has the request's seed. It needs codes from far ahead (see `settling`), so an answer of a few
seconds is computed when its last code is there; of a longer one that streams in, what is certain is
computed and sent while the rest is still being spoken. Requests are computed one after the other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, TypeVar

import torch
from msgspec import Struct, structs

from omnistage_common.errors import EngineFailed, InvalidWeights, RequestCancelled, SetupError
from omnistage_common.ids import OutputName
from omnistage_common.payloads import PayloadKind
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, Outputs
from omnistage_stage.engines.torch.arguments import Token2WavArguments
from omnistage_stage.engines.torch.components import ComponentSpec, require_ports
from omnistage_stage.engines.torch.conversion import from_payload, to_payload
from omnistage_stage.engines.torch.qwen2_5_omni.flowing import Flow
from omnistage_stage.engines.torch.qwen2_5_omni.parts import load_token2wav
from omnistage_stage.engines.torch.qwen2_5_omni.settling import Settling
from omnistage_stage.engines.torch.qwen2_5_omni.vocoding import Vocoder
from omnistage_stage.engines.torch.qwen2_5_omni.voices import Voice, read_voices
from omnistage_stage.engines.workers import Work, WorkerThreads

__all__ = ["Token2Wav"]

T = TypeVar("T")

_CODES: Final = OutputName("codes")
_RATE_HZ: Final = 24_000
_SAMPLES_AT_ONCE: Final = _RATE_HZ
_POINTS: Final = 10
_GUIDANCE: Final = 0.5
_SWAY: Final = -1.0
"""As in the model's own `token2wav`."""


class _Model(Struct, frozen=True, kw_only=True):
    """What is loaded."""

    flow: Flow
    vocoder: Vocoder
    settling: Settling
    codes: int
    """The codebook's size."""
    longest: int
    """Codes that the model was made for at most."""


class _Speech:
    """One request on its way."""

    def __init__(self, voice: Voice, seed: int) -> None:
        self.voice = voice
        self.seed = seed
        self.codes: list[int] = []
        self.flowed = 0
        """Codes of the last flow."""
        self.spoken = 0
        """Frames whose samples were made."""


class Token2Wav:
    """See `Component`."""

    def __init__(self, spec: ComponentSpec) -> None:
        assert isinstance(spec.arguments, Token2WavArguments)  # noqa: S101
        require_ports(spec.spec, needed=(_CODES,), allowed=(_CODES,))
        if spec.arguments.dtype not in ("auto", "float32"):
            raise SetupError(
                f"engineArgs.dtype: {spec.arguments.dtype} is too coarse for token2wav, which the "
                "model computes in float32 only; leave it out",
                field="engineArgs.dtype",
            )
        self._spec = spec
        self._arguments = spec.arguments
        self._placement = structs.replace(spec.placement, dtype=torch.float32)
        self._voices = read_voices(spec.checkpoint, default=spec.arguments.voice)
        self._worker = WorkerThreads(name=f"token2wav-{spec.spec.stage}", size=1)
        self._model: _Model | None = None
        self._active = 0

    @property
    def active(self) -> int:
        """Requests that have not ended."""
        return self._active

    async def load(self) -> None:
        """Loads both models.

        Raises:
            InvalidWeights: The checkpoint lacks something.
        """
        self._model = await self._worker.compute(self._load)

    async def probe(self) -> None:
        """Speaks two codes for real."""
        speech = _Speech(self._voices.default, seed=0)
        speech.codes = [0, 0]
        samples = await self._worker.compute(
            partial(self._compute, speech, count=2, ended=True, progress=lambda _done: None)
        )
        if not samples.isfinite().all():
            raise EngineFailed("the vocoder made no sound of two codes when it was tried")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Speaks one answer.

        Raises:
            InvalidRequest: There is no such voice.
            EngineFailed: The codes are not this model's, or there are none.
        """
        voice = self._voices.find(request.parameters.voice)
        seed = request.parameters.seed
        speech = _Speech(voice, torch.Generator().seed() if seed is None else seed)
        self._active += 1
        try:
            await self._speak(speech, request, outputs)
        finally:
            self._active -= 1
        return EngineResult(input_tokens=len(speech.codes))

    async def close(self) -> None:
        """Ends the thread and frees the weights."""
        self._worker.close()
        self._model = None

    async def _speak(self, speech: _Speech, request: EngineRequest, outputs: Outputs) -> None:
        settling = self._loaded().settling
        streamed = _CODES in request.streams
        async for codes in self._pieces(request):
            speech.codes.extend(codes)
            if streamed and (count := settling.next_flow(len(speech.codes), speech.flowed)):
                await self._put(speech, outputs, count=count, ended=False)
        count = len(speech.codes)
        if not count:
            raise EngineFailed("no codes came, so there is nothing to hear")
        if count > self._loaded().longest:
            raise EngineFailed(
                f"{count} codes came; this vocoder takes {self._loaded().longest}. Set the talker's "
                "engineArgs.max_frames to that"
            )
        await self._put(speech, outputs, count=count, ended=True)

    async def _pieces(self, request: EngineRequest) -> AsyncIterator[list[int]]:
        """The codes as they arrive; none is empty."""
        size = self._loaded().codes
        async for piece in request.pieces(_CODES):
            codes = from_payload(piece)
            if codes.dtype != torch.long or codes.ndim != 2 or codes.shape[1] != 1:  # noqa: PLR2004
                raise EngineFailed(
                    f"codes came as {codes.dtype} {list(codes.shape)}; this vocoder takes int64 "
                    "with one code per row"
                )
            values = codes[:, 0].tolist()
            if values and not 0 <= min(values) <= max(values) < size:
                raise EngineFailed(
                    f"codes from {min(values)} to {max(values)} came; the codebook has {size}"
                )
            if values:
                yield values

    async def _put(self, speech: _Speech, outputs: Outputs, *, count: int, ended: bool) -> None:
        """Computes what can be computed and hands it over.

        Args:
            speech: The request.
            outputs: Where to.
            count: Codes that count.
            ended: Whether there are no more.
        """
        loop = asyncio.get_running_loop()
        steps = self._loaded().flow.steps

        def progress(done: int) -> None:
            if ended:
                loop.call_soon_threadsafe(outputs.progress, done, steps)

        samples = await self._worker.compute(
            partial(self._compute, speech, count=count, ended=ended, progress=progress)
        )
        for part in samples.split(_SAMPLES_AT_ONCE):
            await outputs.put(
                self._spec.output, to_payload(part, PayloadKind.WAVEFORM, rate_hz=_RATE_HZ)
            )

    def _compute(
        self,
        speech: _Speech,
        work: Work,
        *,
        count: int,
        ended: bool,
        progress: Callable[[int], None],
    ) -> Any:
        """The samples that follow those made before; in the thread."""
        model = self._loaded()
        told = -1

        def advance(done: int) -> None:
            nonlocal told
            if not work.wanted():
                raise RequestCancelled("nobody waits for this speech any more")
            if done != told:
                told = done
                progress(done)

        spectrogram = model.flow.spectrogram(
            torch.tensor(speech.codes[:count]), speech.voice, speech.seed, advance
        )
        advance(model.flow.steps)
        if ended:
            end = spectrogram.shape[-1]
        else:
            spectrogram = spectrogram[..., : model.settling.settled(count)]
            end = spectrogram.shape[-1] - model.vocoder.context
        samples = model.vocoder.part(spectrogram, speech.spoken, end)
        speech.flowed, speech.spoken = count, end
        return samples

    def _loaded(self) -> _Model:
        if self._model is None:
            raise EngineFailed("the vocoder was used before it was loaded")
        return self._model

    def _load(self, _work: Work) -> _Model:
        self._placement.enter()
        self._spec.checkpoint.require("token2wav_config")
        part = load_token2wav(self._spec.checkpoint, self._placement).token2wav
        dit = part.code2wav_dit_model
        self._check_voices(dit.config)
        arguments = self._arguments
        flow = Flow(
            dit,
            points=_given(arguments.num_steps, _POINTS),
            guidance=_given(arguments.guidance_scale, _GUIDANCE),
            sway=_given(arguments.sway_coefficient, _SWAY),
        )
        vocoder = Vocoder(part.code2wav_bigvgan_model)
        return _Model(
            flow=flow,
            vocoder=vocoder,
            settling=Settling(
                block=dit.block_size,
                repeats=dit.repeats,
                look_ahead=flow.look_ahead,
                context=vocoder.context,
                window=vocoder.window,
            ),
            codes=dit.text_embed.codec_embed.num_embeddings,
            longest=dit.config.max_position_embeddings // dit.repeats,
        )

    def _check_voices(self, config: Any) -> None:
        for voice in self._voices:
            for field, size, wanted in (
                ("cond", voice.embedding.shape[-1], config.enc_emb_dim),
                ("ref_mel", voice.reference.shape[-1], config.mel_dim),
            ):
                if size != wanted:
                    raise InvalidWeights(
                        f"{self._spec.checkpoint.folder}/spk_dict.pt: {voice.name}'s {field} has "
                        f"rows of {size}; the model's have {wanted}",
                        field="model",
                    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
