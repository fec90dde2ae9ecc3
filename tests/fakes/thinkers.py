"""Thinkers of tiny omni checkpoints: one in vLLM, and the same in its own monolithic code."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from fakes.engine_io import RecordedOutputs, conversation, engine_request, engine_spec
from omnistage_common.ids import OutputName
from omnistage_common.payloads import (
    INLINE_LIMIT,
    AudioPart,
    ElementType,
    ImagePart,
    Message,
    Parameters,
    Payload,
    PayloadKind,
    Tensor,
    TensorHeader,
    TextPart,
)
from omnistage_stage.engines.protocol import EngineRequest, EngineResult, InputSpec
from omnistage_stage.engines.vllm import VllmEngine
from omnistage_stage.engines.vllm.outputs import OFFERED
from omnistage_stage.weights import logged, weights_of

__all__ = [
    "RATE_HZ",
    "Answer",
    "Ask",
    "Floats",
    "Monolith",
    "StrictOutputs",
    "answer_of",
    "media_inputs",
    "painting",
    "recording",
    "think",
    "thinker",
]

Floats = np.ndarray[Any, np.dtype[np.float32]]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

RATE_HZ: Final = 16_000
NEVER: Final = 1_000_000
"""No token has this id."""
_TYPES: Final = {"float32": "<f4", "int64": "<i8"}


class Ask(Struct, frozen=True, kw_only=True):
    """A user's message: text, recordings and pictures where they stand."""

    parts: tuple[str | AudioPart | ImagePart, ...]
    audio: tuple[Floats, ...] = ()
    images: tuple[Pixels, ...] = ()

    def request(self, **parameters: Any) -> EngineRequest:
        """The request, greedy and of 24 tokens unless it says otherwise."""
        message = Message(
            role="user",
            parts=tuple(TextPart(text=p) if isinstance(p, str) else p for p in self.parts),
        )
        return engine_request(
            {"conversation": (conversation(message),), **media_inputs(self.audio, self.images)},
            Parameters(**({"temperature": 0.0, "max_tokens": 24, "ignore_eos": True} | parameters)),
        )


class Answer(Struct, frozen=True, kw_only=True):
    """What a thinker makes of a question."""

    prompt_tokens: list[int]
    prompt_positions: list[list[int]]
    """Of each token of the prompt, three."""
    tokens: list[int]
    prompt_rows: Floats
    rows: Floats


class StrictOutputs(RecordedOutputs):
    """Refuses what a stage refuses: large tensors by `emit`."""

    def __init__(self) -> None:
        super().__init__()
        self.put_names: list[OutputName] = []

    def emit(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps a small output."""
        content = payload.content
        assert not isinstance(content, Tensor) or content.header.length <= INLINE_LIMIT
        super().emit(name, payload, index=index)

    async def put(self, name: OutputName, payload: Payload, *, index: int = 0) -> None:
        """Keeps an output of any size."""
        self.put_names.append(name)
        super().emit(name, payload, index=index)


class Monolith:
    """A checkpoint in the code that its makers wrote for transformers."""

    def __init__(self, name: str) -> None:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        folder = weights_of(f"tiny://{name}").prepare(logged)
        config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, config.architectures[0])
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        self.stop = int(self.processor.tokenizer.eos_token_id)
        self._thinker = model.from_pretrained(folder, dtype=torch.float32).eval().thinker
        self._layer = getattr(config.talker_config, "accept_hidden_layer", -1)

    def inputs(self, ask: Ask) -> Any:
        """What its processor makes of a question."""
        kinds = {AudioPart: "audio", ImagePart: "image"}
        content: Any = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": kinds[type(part)]}
            for part in ask.parts
        ]
        if all(isinstance(part, str) for part in ask.parts):
            content = "\n".join(part["text"] for part in content)
        text = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        audio = [ask.audio[part.index] for part in ask.parts if isinstance(part, AudioPart)]
        images = [ask.images[part.index] for part in ask.parts if isinstance(part, ImagePart)]
        return self.processor(
            text=text, audio=audio or None, images=images or None, return_tensors="pt", padding=True
        )

    def think(self, ask: Ask, *, tokens: int = 24, stops: bool = False) -> Answer:
        """Its greedy answer."""
        import torch  # noqa: PLC0415

        inputs = self.inputs(ask)
        with torch.no_grad():
            made = self._thinker.generate(
                **inputs,
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=self.stop if stops else NEVER,
                output_hidden_states=True,
                return_dict_in_generate=True,
            )
        lengths = inputs.get("feature_attention_mask")
        positions, _ = self._thinker.get_rope_index(
            inputs["input_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
            attention_mask=inputs["attention_mask"],
            audio_seqlens=None if lengths is None else lengths.sum(1),
        )
        prompt, *steps = [step[self._layer][0].numpy() for step in made.hidden_states]
        return Answer(
            prompt_tokens=inputs["input_ids"][0].tolist(),
            prompt_positions=positions[:, 0].T.long().tolist(),
            tokens=made.sequences[0, len(prompt) :].tolist(),
            prompt_rows=prompt,
            rows=np.concatenate([prompt[:0], *steps]),
        )


def thinker(name: str, **arguments: Any) -> VllmEngine:
    """The engine that runs a tiny checkpoint's thinker, makes all outputs and takes all inputs."""
    produces = {str(output): kind for output, kind in OFFERED.items()}
    spec = engine_spec(produces, model=f"tiny://{name}", dtype="float32", **arguments)
    kinds = (PayloadKind.CONVERSATION, PayloadKind.WAVEFORM, PayloadKind.IMAGE)
    consumes = {OutputName(kind.value): InputSpec(kind=kind) for kind in kinds}
    return VllmEngine(msgspec.structs.replace(spec, consumes=consumes))


async def think(engine: VllmEngine, ask: Ask, **parameters: Any) -> tuple[Answer, EngineResult]:
    """What the engine makes of a question."""
    outputs = StrictOutputs()
    result = await engine.run(ask.request(**parameters), outputs)
    return answer_of(outputs), result


def answer_of(outputs: RecordedOutputs) -> Answer:
    """The outputs put together, each by its name."""

    def whole(name: str) -> Any:
        return np.concatenate(
            [
                np.frombuffer(p.content.data, _TYPES[p.content.header.element_type.value]).reshape(
                    p.content.header.shape
                )
                for piece, _, p in outputs.pieces
                if piece == name and isinstance(p.content, Tensor)
            ]
        )

    return Answer(
        prompt_tokens=whole("prompt_tokens").tolist(),
        prompt_positions=whole("prompt_positions").tolist(),
        tokens=whole("tokens").tolist(),
        prompt_rows=whole("prompt_hidden_states"),
        rows=whole("hidden_states"),
    )


def media_inputs(
    audio: Sequence[Floats] = (), images: Sequence[Pixels] = ()
) -> dict[str, tuple[Payload, ...]]:
    """The request's inputs `audio` and `image`."""

    def tensor(array: Any, element_type: ElementType, rate_hz: int = 0) -> Tensor:
        header = TensorHeader(element_type=element_type, shape=array.shape, rate_hz=rate_hz)
        return Tensor(header=header, data=array.tobytes())

    return {
        "audio": tuple(
            Payload(
                kind=PayloadKind.WAVEFORM, content=tensor(samples, ElementType.FLOAT32, RATE_HZ)
            )
            for samples in audio
        ),
        "image": tuple(
            Payload(kind=PayloadKind.IMAGE, content=tensor(pixels, ElementType.UINT8))
            for pixels in images
        ),
    }


def recording(samples: int, seed: int = 0) -> Floats:
    """Noise at 16 kHz."""
    noise = np.random.default_rng(seed).standard_normal(samples) * 0.1
    return noise.astype(np.float32)


def painting(height: int, width: int, seed: int = 0) -> Pixels:
    """Pixels of any colour."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
