"""Speech recognition with pocketsphinx: small, English, offline.

Two properties of the decoder shape this file. It holds Python's global lock while it computes, so
audio goes in by the tenth of a second and long recordings are cut at their quietest moments: the
event loop of the stage (health, cancellation, deadlines) is never kept waiting for long. And it
adapts to what it hears, so its state is put back before every recording: the same audio gives the
same text, whoever spoke before.
"""

from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from omnistage_common.errors import EngineFailed, InvalidRequest, MissingDependency
from omnistage_common.payloads import ElementType, Payload, PayloadKind, Tensor
from omnistage_stage.engines.arguments import parse_arguments, sole_output
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.workers import Work, WorkerThreads
from omnistage_stage.weights import logged, weights_of

__all__ = ["PocketsphinxArguments", "PocketsphinxEngine"]

Samples = np.ndarray[Any, np.dtype[np.float32]]

_SOURCE: Final = "package://pocketsphinx"
_AUDIO: Final = "audio"
_RATE_HZ: Final = 16_000
_STEP: Final = _RATE_HZ // 10
"""Samples per decoder call; takes some 10 ms."""
_LONGEST_UTTERANCE: Final = 10 * _RATE_HZ
_SHORTEST_UTTERANCE: Final = 5 * _RATE_HZ
_VOICE_FRAME_S: Final = 0.03
_LEAST_VOICED_FRAMES: Final = 4
"""Fewer frames of 30 ms that sound like a voice are no speech."""
_FULL_SCALE: Final = {ElementType.INT16: 32768.0, ElementType.FLOAT32: 1.0}
_RATES: Final = range(4_000, 384_001)


class PocketsphinxArguments(Struct, frozen=True, kw_only=True):
    """`engineArgs` of the engine."""

    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    """Recordings in work at once. The decoder holds Python's global lock: more threads share one
    core fairly but are not faster; more replicas are."""
    max_seconds: Annotated[float, Meta(gt=0, le=3600)] = 120.0
    """Longest recording that is accepted, in seconds."""


class PocketsphinxEngine:
    """Writes down what is said in each tensor that arrives at the port `audio`."""

    def __init__(self, spec: EngineSpec) -> None:
        self._arguments = parse_arguments(spec.args, PocketsphinxArguments)
        self._source = spec.model or _SOURCE
        self._output = sole_output(spec, PayloadKind.TEXT)
        self._workers = WorkerThreads(name="pocketsphinx", size=self._arguments.threads)
        self._recognisers: list[_Recogniser] = []

    async def load(self) -> None:
        """Loads acoustic and language model, once for each thread.

        Raises:
            MissingDependency: pocketsphinx or soxr is not installed.
            InvalidWeights: The package's files are broken.
        """
        await self._workers.compute(self._load)

    async def probe(self) -> None:
        """Decodes half a second of silence for real."""
        silence = np.zeros(_RATE_HZ // 2, np.float32)
        await self._workers.compute(partial(self._recognise, silence, _RATE_HZ))

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Writes down one request's recordings, in order.

        Raises:
            InvalidRequest: A recording is too long, or nobody speaks in it.
            EngineFailed: There is no recording, or it is not mono float32 or int16.
        """
        tensors = [
            tensor
            for name, payloads in request.inputs.items()
            if any(payload.kind is PayloadKind.WAVEFORM for payload in payloads)
            for tensor in request.tensors(name)
        ]
        if not tensors:
            raise EngineFailed("recognition takes audio; the pipeline brings none")
        for index, tensor in enumerate(tensors):
            samples = self._checked(tensor, index)
            text = await self._workers.compute(
                partial(self._recognise, samples, tensor.header.rate_hz)
            )
            if not text:
                raise InvalidRequest(
                    f"no speech was recognised in audio input {index}. "
                    "Send a recording in which someone speaks English, near the microphone",
                    field="messages",
                )
            outputs.emit(self._output, Payload(kind=PayloadKind.TEXT, content=text), index=index)
        return EngineResult()

    async def close(self) -> None:
        """Ends the threads and lets go of the models."""
        self._workers.close()
        self._recognisers.clear()

    def _load(self, _work: Work) -> None:
        weights_of(self._source).prepare(logged)
        for _ in range(self._arguments.threads):
            self._recognisers.append(_Recogniser())

    def _checked(self, tensor: Tensor, index: int) -> Samples:
        """A recording's samples, from -1 to 1; a copy where it was not float32 already."""
        header = tensor.header
        scale = _FULL_SCALE.get(header.element_type)
        if scale is None or len(header.shape) != 1 or header.rate_hz not in _RATES:
            raise EngineFailed(
                f"audio input {index} is {header.element_type.value} {list(header.shape)} at "
                f"{header.rate_hz} Hz; recognition takes mono float32 or int16 with its rate"
            )
        seconds = header.shape[0] / header.rate_hz
        if seconds > self._arguments.max_seconds:
            raise InvalidRequest(
                f"audio input {index} lasts {seconds:.1f} s; this stage takes at most "
                f"{self._arguments.max_seconds:g} s",
                field="messages",
            )
        samples = np.frombuffer(tensor.data, header.element_type.value)
        return samples if scale == 1.0 else samples.astype(np.float32) / scale

    def _recognise(self, samples: Samples, rate_hz: int, work: Work) -> str:
        recogniser = self._recognisers.pop()
        try:
            return recogniser.recognise(samples, rate_hz, work)
        finally:
            self._recognisers.append(recogniser)


class _Recogniser:
    """One decoder with what belongs to it; used by one thread at a time."""

    def __init__(self) -> None:
        try:
            import soxr  # noqa: PLC0415
            from pocketsphinx import Decoder, Vad  # noqa: PLC0415
        except ImportError as error:
            raise MissingDependency(
                "recognition needs pocketsphinx and soxr. Install them: "
                "pip install 'omnistage[recognition]'"
            ) from error
        self._resample = soxr.resample
        self._decoder = Decoder(samprate=_RATE_HZ, loglevel="FATAL")
        self._initial_means = self._decoder.get_cmn(update=False)
        self._voices = Vad(Vad.LOOSE, _RATE_HZ, _VOICE_FRAME_S)

    def recognise(self, samples: Samples, rate_hz: int, work: Work) -> str:
        """What is said, in lower case without punctuation; empty when nothing is.

        Args:
            samples: From -1 to 1.
            rate_hz: Samples per second.
            work: Ends the work early when nobody waits for it.
        """
        at_rate = self._resample(samples, rate_hz, _RATE_HZ)
        pcm = (np.clip(at_rate, -1.0, 1.0) * 32767.0).astype("<i2")
        if not self._has_voice(pcm):
            return ""
        self._decoder.set_cmn(self._initial_means)
        texts = [self._decode(utterance, work) for utterance in _utterances(pcm)]
        return " ".join(text for text in texts if text)

    def _has_voice(self, pcm: np.ndarray[Any, np.dtype[np.int16]]) -> bool:
        size = int(_VOICE_FRAME_S * _RATE_HZ)
        frames = (pcm[at : at + size].tobytes() for at in range(0, len(pcm) - size + 1, size))
        voiced = [frame for frame in frames if self._voices.is_speech(frame)]
        return len(voiced) >= _LEAST_VOICED_FRAMES

    def _decode(self, pcm: np.ndarray[Any, np.dtype[np.int16]], work: Work) -> str:
        if not work.wanted():
            return ""
        decoder = self._decoder
        decoder.start_utt()
        for at in range(0, len(pcm), _STEP):
            if not work.wanted():
                break
            decoder.process_raw(pcm[at : at + _STEP].tobytes())
        decoder.end_utt()
        hypothesis = decoder.hyp()
        return "" if hypothesis is None else str(hypothesis.hypstr).strip()


def _utterances(
    pcm: np.ndarray[Any, np.dtype[np.int16]],
) -> list[np.ndarray[Any, np.dtype[np.int16]]]:
    """The recording in pieces of five to ten seconds, cut where it is quietest."""
    pieces = []
    while len(pcm) > _LONGEST_UTTERANCE:
        window = pcm[_SHORTEST_UTTERANCE:_LONGEST_UTTERANCE].astype(np.float64)
        loudness = np.square(window).reshape(-1, _STEP).sum(axis=1)
        cut = _SHORTEST_UTTERANCE + int(loudness.argmin()) * _STEP + _STEP // 2
        pieces.append(pcm[:cut])
        pcm = pcm[cut:]
    return [*pieces, pcm]
