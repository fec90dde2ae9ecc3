"""Text to speech with hibari-tts: one small ONNX model, 24 kHz, many times faster than real time.

A text is spoken sentence by sentence and every sentence is handed over when it is made, so that a
listener hears the first while the rest is computed. The pieces put together are exactly what the
package makes of the whole text with the same seed.
"""

from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from omnistage_common.errors import (
    EngineFailed,
    InvalidRequest,
    InvalidWeights,
    MissingDependency,
    truncated,
)
from omnistage_common.payloads import (
    ElementType,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
)
from omnistage_stage.engines.arguments import parse_arguments, sole_output
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs
from omnistage_stage.engines.workers import Work, WorkerThreads
from omnistage_stage.weights import logged, weights_of

__all__ = ["OPENAI_VOICES", "HibariArguments", "HibariEngine"]

OPENAI_VOICES: Final = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
    "shimmer", "verse",
)  # fmt: skip
"""Voice names that stock OpenAI clients send; each is an alias of the stage's one voice."""

_SOURCE: Final = "package://hibari-tts"
_SPEED: Final = (0.5, 2.0)
_FULL_SCALE: Final = 32767.0


class HibariArguments(Struct, frozen=True, kw_only=True):
    """`engineArgs` of the engine."""

    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    """Requests that compute at once."""
    voice: str = "heart"
    """A voice of the package; all but `heart` must be in hibari's cache already."""


class HibariEngine:
    """Speaks the text that arrives at its one text port."""

    def __init__(self, spec: EngineSpec) -> None:
        self._arguments = parse_arguments(spec.args, HibariArguments)
        self._source = spec.model or _SOURCE
        self._output = sole_output(spec, PayloadKind.WAVEFORM)
        self._workers = WorkerThreads(name="hibari", size=self._arguments.threads)
        self._speaker: Any = None

    async def load(self) -> None:
        """Loads model and lexicon and speaks once.

        Raises:
            MissingDependency: hibari-tts is not installed.
            InvalidWeights: Its files are broken, or the voice is not there.
        """
        self._speaker = await self._workers.compute(self._load)

    async def probe(self) -> None:
        """Speaks a word for real."""
        if not len(await self._workers.compute(lambda _work: self._speaker("Ready."))):
            raise EngineFailed("the speech engine made no sound for a word it knows")

    async def run(self, request: EngineRequest, outputs: Outputs) -> EngineResult:
        """Speaks one text.

        Raises:
            InvalidRequest: Unknown voice, or a speed out of range.
            EngineFailed: There is nothing in the text that can be spoken.
        """
        text = _the_text(request)
        speed = self._checked_speed(request.parameters)
        seed = 0 if request.parameters.seed is None else request.parameters.seed
        # One generator for all sentences, as in the package's own call for a whole text.
        noise = np.random.default_rng(seed % 2**64)
        spoke = False
        for sentence in self._speaker.split_sentences(text):
            samples = await self._workers.compute(partial(self._speak, sentence, speed, noise))
            if len(samples):
                spoke = True
                await outputs.put(self._output, _waveform(samples, self._speaker.sample_rate))
        if not spoke:
            raise EngineFailed(f"the text {truncated(text)!r} holds nothing that can be spoken")
        return EngineResult()

    async def close(self) -> None:
        """Ends the threads and lets go of the model."""
        self._workers.close()
        self._speaker = None

    def _load(self, _work: Work) -> Any:
        folder = weights_of(self._source).prepare(logged)
        try:
            from hibari import Hibari  # noqa: PLC0415
            from hibari.voices import VOICES, voice_path  # noqa: PLC0415
        except ImportError as error:
            raise MissingDependency(
                "speech needs hibari-tts and onnxruntime. Install them: "
                "pip install 'omnistage[onnx]'"
            ) from error
        voice = self._arguments.voice
        if voice not in VOICES:
            raise InvalidWeights(
                f"engineArgs.voice: hibari has no voice {voice!r}; it has {', '.join(VOICES)}",
                field="engineArgs.voice",
            )
        try:
            model = voice_path(voice, download_missing=False)
        except FileNotFoundError as error:
            raise InvalidWeights(
                f"voice {voice!r} is not in {folder} and not at {error}. "
                f"Fetch it once: hibari --voice {voice} 'hello' -o hello.wav",
                field="engineArgs.voice",
            ) from error
        speaker = Hibari(voice=voice, model=model, threads=1)
        speaker("Warm up.")
        return speaker

    def _checked_speed(self, parameters: Parameters) -> float:
        valid = (self._arguments.voice, *OPENAI_VOICES)
        if parameters.voice is not None and parameters.voice not in valid:
            raise InvalidRequest(
                f"unknown voice {truncated(parameters.voice)!r}. This model has one voice, "
                f"{valid[0]!r}, which also answers to {', '.join(valid[1:])}",
                field="audio.voice",
            )
        speed = 1.0 if parameters.speed is None else parameters.speed
        if not _SPEED[0] <= speed <= _SPEED[1]:
            raise InvalidRequest(
                f"speed {speed} is out of range; it goes from {_SPEED[0]} to {_SPEED[1]}",
                field="speed",
            )
        return speed

    def _speak(
        self, sentence: str, speed: float, noise: np.random.Generator, work: Work
    ) -> np.ndarray[Any, np.dtype[np.int16]]:
        speaker = self._speaker
        pieces = [np.zeros(0, np.float32)]
        for phonemes in speaker.phonemize(sentence):
            if not work.wanted():
                break
            pieces.append(speaker.from_ids(speaker.ids(phonemes), speed, noise))
        return (np.clip(np.concatenate(pieces), -1.0, 1.0) * _FULL_SCALE).astype("<i2")


def _the_text(request: EngineRequest) -> str:
    ports = {
        name: "".join(str(payload.content) for payload in payloads)
        for name, payloads in request.inputs.items()
        if any(payload.kind is PayloadKind.TEXT for payload in payloads)
    }
    if len(ports) != 1:
        raise EngineFailed(
            f"speech takes one text; the pipeline brings {', '.join(sorted(ports)) or 'none'}"
        )
    (text,) = ports.values()
    if not text.strip():
        raise EngineFailed("there is no text to speak: the stage before made an empty one")
    return text


def _waveform(samples: np.ndarray[Any, np.dtype[np.int16]], rate_hz: int) -> Payload:
    header = TensorHeader(element_type=ElementType.INT16, shape=(len(samples),), rate_hz=rate_hz)
    return Payload(kind=PayloadKind.WAVEFORM, content=Tensor(header=header, data=samples.tobytes()))
