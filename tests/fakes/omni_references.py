"""What transformers' `generate` makes of a conversation with Qwen3-Omni: the reference for services."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct
from transformers import AutoProcessor

from fakes.qwen3_omni import load_model, write_model
from omnistage_stage.weights import weights_of

__all__ = ["Reference", "Spoken", "reference"]


class Spoken(Struct, frozen=True, kw_only=True):
    """One answer."""

    text: str
    tokens: int
    frames: int
    samples: Any
    """float32 [samples], a numpy array."""


class Reference:
    """The whole model in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._model = load_model(folder)
        self._processor = AutoProcessor.from_pretrained(folder)

    def answer(
        self,
        text: str,
        *,
        seed: int,
        tokens: int,
        frames: int,
        audio: npt.NDArray[np.float32] | None = None,
        image: npt.NDArray[np.uint8] | None = None,
    ) -> Spoken:
        """What it says to one message of a user.

        Args:
            text: Of the message, after what else is in it.
            seed: Of the talker's draws; the thinker takes the likeliest token.
            tokens: Most tokens of text.
            frames: Most codec frames.
            audio: Mono, 16 kHz.
            image: [height, width, 3].
        """
        inputs = self._inputs(text, audio, image)
        talker = self._model.talker.generate
        heard: list[int] = []

        def talk(**arguments: Any) -> Any:
            torch.manual_seed(seed)
            result = talker(**arguments)
            heard.append(sum(hidden[-1] is not None for hidden in result.hidden_states))
            return result

        self._model.talker.generate = talk
        try:
            with warnings.catch_warnings():
                # `generate` warns of how it calls itself.
                warnings.simplefilter("ignore", UserWarning)
                sequences, samples = self._model.generate(
                    **inputs,
                    speaker="ethan",
                    thinker_do_sample=False,
                    thinker_max_new_tokens=tokens,
                    thinker_eos_token_id=self._model.config.im_end_token_id,
                    talker_max_new_tokens=frames + 1,
                )
        finally:
            self._model.talker.generate = talker
        answer = sequences[0, inputs["input_ids"].shape[1] :]
        return Spoken(
            text=self._processor.tokenizer.decode(answer, skip_special_tokens=True),
            tokens=len(answer),
            frames=heard[0],
            samples=samples.flatten().numpy(),
        )

    def _inputs(self, text: str, audio: Any, image: Any) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if audio is not None:
            content.append({"type": "audio"})
        if image is not None:
            content.append({"type": "image"})
        content.append({"type": "text", "text": text})
        prompt = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        given: dict[str, Any] = {"text": prompt, "return_tensors": "pt"}
        if audio is not None:
            given |= {"audio": [audio], "sampling_rate": 16000}
        if image is not None:
            given |= {"images": [image]}
        return dict(self._processor(**given))


def reference(folder: Path) -> Reference:
    """Writes a small model that has something to say, with all that a thinker needs, and loads it."""
    torch.set_num_threads(1)
    source = weights_of("tiny://qwen3-omni").prepare(lambda _line: None)
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for weights in folder.glob("*.safetensors*"):
        weights.unlink()
    return Reference(write_model(folder))
