"""What transformers' `generate` makes of a conversation with an omni model: the reference for services."""

import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct
from transformers import AutoProcessor

from fakes import qwen2_5_omni, qwen3_omni
from omnistage_stage.weights import weights_of

__all__ = ["Question", "Reference", "Said", "reference_for"]


class Question(Struct, frozen=True, kw_only=True):
    """One message of a user: a recording, a picture, and text after them."""

    text: str
    seed: int
    """Of what is drawn after the text; the thinker takes the likeliest token."""
    audio: npt.NDArray[np.float32] | None = None
    """Mono, 16 kHz."""
    image: npt.NDArray[np.uint8] | None = None
    """[height, width, 3]."""


class Said(Struct, frozen=True, kw_only=True):
    """One answer."""

    text: str
    samples: Any
    """float32 [samples], a numpy array."""


class Reference(ABC):
    """A whole model in this process.

    Args:
        family: Stands after `tiny://`.
        folder: Gets a small model that has something to say, with all that a thinker needs.
    """

    family: str

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        source = weights_of(f"tiny://{self.family}").prepare(lambda _line: None)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for weights in folder.glob("*.safetensors*"):
            weights.unlink()
        self.folder = folder
        self.model = self._written(folder)
        self._processor = AutoProcessor.from_pretrained(folder)

    def answer(self, question: Question, *, tokens: int, frames: int) -> Said:
        """What it says.

        Args:
            question: To it.
            tokens: Most tokens of text.
            frames: Most codec frames.
        """
        inputs = self._inputs(question)
        prompt = inputs["input_ids"].shape[1]
        with warnings.catch_warnings():
            # `generate` warns of how it calls itself.
            warnings.simplefilter("ignore", UserWarning)
            sequences, samples = self._generated(inputs, question.seed, tokens, frames)
        text = self._processor.tokenizer.decode(sequences[0, prompt:], skip_special_tokens=True)
        return Said(text=text, samples=samples.flatten().numpy())

    @abstractmethod
    def _written(self, folder: Path) -> Any:
        """The model, once its checkpoint is in the folder."""

    @abstractmethod
    def _generated(self, inputs: dict[str, Any], seed: int, tokens: int, frames: int) -> Any:
        """Ids of prompt and answer, and the samples."""

    def _inputs(self, question: Question) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if question.audio is not None:
            content.append({"type": "audio"})
        if question.image is not None:
            content.append({"type": "image"})
        content.append({"type": "text", "text": question.text})
        prompt = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        given: dict[str, Any] = {"text": prompt, "return_tensors": "pt"}
        if question.audio is not None:
            given |= {"audio": [question.audio], "sampling_rate": 16000}
        if question.image is not None:
            given |= {"images": [question.image]}
        return dict(self._processor(**given))


class Qwen3Reference(Reference):
    """Qwen3-Omni."""

    family = "qwen3-omni"

    def _written(self, folder: Path) -> Any:
        return qwen3_omni.load_model(qwen3_omni.write_model(folder))

    def _generated(self, inputs: dict[str, Any], seed: int, tokens: int, frames: int) -> Any:
        with _seeded(self.model.talker, "generate", seed):
            return self.model.generate(
                **inputs,
                speaker="ethan",
                thinker_do_sample=False,
                thinker_max_new_tokens=tokens,
                thinker_eos_token_id=self.model.config.im_end_token_id,
                talker_max_new_tokens=frames + 1,
            )


class Qwen25Reference(Reference):
    """Qwen2.5-Omni; with a token of padding, as `fakes.qwen2_5_omni` says why."""

    family = "qwen2.5-omni"

    def _written(self, folder: Path) -> Any:
        return qwen2_5_omni.load_model(qwen2_5_omni.write_model(folder))

    def _generated(self, inputs: dict[str, Any], seed: int, tokens: int, frames: int) -> Any:
        # `generate` hands what has no prefix to the talker too, which takes no pixels.
        if "pixel_values" in inputs:
            inputs["thinker_pixel_values"] = inputs.pop("pixel_values")
        ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
        padding = torch.full((1, 1), qwen2_5_omni.PADDING)
        with (
            _seeded(self.model.talker, "generate", seed),
            _seeded(self.model.token2wav, "forward", seed),
        ):
            sequences, samples = self.model.generate(
                input_ids=torch.cat((padding, ids), 1),
                attention_mask=torch.cat((torch.zeros_like(padding), mask), 1),
                **inputs,
                speaker="Chelsie",
                thinker_do_sample=False,
                thinker_max_new_tokens=tokens,
                thinker_eos_token_id=self._processor.tokenizer.eos_token_id,
                talker_max_new_tokens=frames,
                talker_eos_token_id=qwen2_5_omni.stops(self.model.config.talker_config),
            )
        return sequences[:, 1:], samples


def reference_for(family: str, folder: Path) -> Reference:
    """The reference of a family."""
    made: dict[str, type[Reference]] = {
        kind.family: kind for kind in (Qwen3Reference, Qwen25Reference)
    }
    return made[family](folder)


@contextmanager
def _seeded(part: Any, method: str, seed: int) -> Iterator[None]:
    """Within it, torch's generator is seeded whenever a method of a part is called."""
    original = getattr(part, method)

    def call(*arguments: Any, **named: Any) -> Any:
        torch.manual_seed(seed)
        return original(*arguments, **named)

    setattr(part, method, call)
    try:
        yield
    finally:
        setattr(part, method, original)
