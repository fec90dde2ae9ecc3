"""Tiny checkpoints are whole, always the same, and models that answer what they are asked.

What the engines make of them is tested with the engines.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.deterministic
from safetensors import safe_open
from transformers import (
    AutoProcessor,
    Qwen2_5OmniForConditionalGeneration,
    Qwen3OmniMoeForConditionalGeneration,
)

from omnistage_stage.weights.cache import WeightsCache
from omnistage_stage.weights.quieting import quiet_transformers
from omnistage_stage.weights.tiny import TINY_NAMES, tiny_recipe

OMNI = {
    "qwen2.5-omni": Qwen2_5OmniForConditionalGeneration,
    "qwen3-omni": Qwen3OmniMoeForConditionalGeneration,
}
LARGEST = 6_000_000
"""Bytes."""
SENTENCES = ("Tell me a story.", "What is in this picture?", "Hello, how are you?")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> WeightsCache:
    return WeightsCache(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fills memory that nobody initialised with NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(mode=True)
        yield
        torch.use_deterministic_algorithms(mode=False)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("name", TINY_NAMES)
def test_a_checkpoint_is_small_and_every_weight_is_drawn(cache: WeightsCache, name: str) -> None:
    folder = cache.prepare(tiny_recipe(name))

    files = sorted(folder.rglob("*.safetensors"))
    assert files
    assert sum(path.stat().st_size for path in folder.rglob("*")) < LARGEST
    for path in files:
        with safe_open(path, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118 - not a mapping
                tensor = weights.get_tensor(key)
                assert tensor.isfinite().all(), f"{path.name}: {key}"
                if tensor.is_floating_point():
                    assert tensor.dtype is torch.float32, f"{path.name}: {key}"


@pytest.mark.parametrize("name", ["qwen3-omni", "stable-diffusion-3"])
def test_making_it_again_makes_the_same(cache: WeightsCache, tmp_path: Path, name: str) -> None:
    torch.manual_seed(1234)
    before = torch.random.get_rng_state()

    again = WeightsCache(tmp_path).prepare(tiny_recipe(name))

    assert digests(again) == digests(cache.prepare(tiny_recipe(name)))
    assert torch.equal(torch.random.get_rng_state(), before)


class Omni:
    """An omni model as transformers loads it."""

    def __init__(self, folder: Path, model: Any, processor: Any) -> None:
        self.folder = folder
        self.model = model
        self.processor = processor
        self.stop = processor.tokenizer.eos_token_id

    def ask(self, *parts: dict[str, str], **media: Any) -> list[int]:
        """What the thinker says, at most 40 tokens."""
        text = self.processor.apply_chat_template(
            [{"role": "user", "content": list(parts)}], add_generation_prompt=True, tokenize=False
        )
        inputs = self.processor(text=text, return_tensors="pt", **media)
        with torch.no_grad(), quiet_transformers():
            ids = self.model.thinker.generate(
                **inputs, max_new_tokens=40, do_sample=False, eos_token_id=self.stop
            )
        answer: list[int] = ids[0, inputs["input_ids"].shape[1] :].tolist()
        return answer

    def say(self, text: str) -> list[int]:
        """The answer to a text."""
        return self.ask({"type": "text", "text": text})


@pytest.fixture(scope="module", params=sorted(OMNI))
def omni(cache: WeightsCache, request: pytest.FixtureRequest) -> Omni:
    folder = cache.prepare(tiny_recipe(request.param))
    with quiet_transformers():
        model = OMNI[request.param].from_pretrained(folder, dtype=torch.float32).eval()
        return Omni(folder, model, AutoProcessor.from_pretrained(folder))


def test_roles_and_marks_are_one_token_each(omni: Omni) -> None:
    config = json.loads((omni.folder / "config.json").read_text("utf-8"))
    tokenizer = omni.processor.tokenizer

    ids = tokenizer("<|im_start|>user\nHello<|im_end|>").input_ids

    start, user, stop = tokenizer.convert_tokens_to_ids(["<|im_start|>", "user", "<|im_end|>"])
    assert ids[:2] == [start, user]
    assert ids[-1] == stop
    assert config["thinker_config"]["user_token_id"] == user
    assert config["thinker_config"]["text_config"]["vocab_size"] == len(tokenizer)
    assert tokenizer.decode(tokenizer("One, two: ça va? 你好").input_ids) == "One, two: ça va? 你好"


def test_answers_are_readable_and_depend_on_what_was_said(omni: Omni) -> None:
    answers = [omni.say(sentence) for sentence in SENTENCES]

    assert len({tuple(answer) for answer in answers}) == len(SENTENCES)
    for answer in answers:
        spoken = [token for token in answer if token != omni.stop]
        text = omni.processor.tokenizer.decode(spoken)
        assert len(spoken) > 1
        assert text.isascii()
        assert text.isprintable()
        assert not set(spoken) & set(omni.processor.tokenizer.all_special_ids)


def test_recordings_and_pictures_are_perceived(omni: Omni) -> None:
    noise = np.random.default_rng(0)
    tone = np.sin(np.arange(16_000, dtype=np.float32) / 8)
    sounds = [noise.standard_normal(16_000, np.float32), tone]
    pictures = [noise.integers(0, high, (64, 64, 3), dtype=np.uint8) for high in (20, 255)]
    question = {"type": "text", "text": "What is it?"}

    heard = {tuple(omni.ask({"type": "audio"}, question, audio=[sound])) for sound in sounds}
    seen = {tuple(omni.ask({"type": "image"}, question, images=[each])) for each in pictures}

    assert len(heard) == len(sounds)
    assert len(seen) == len(pictures)


def test_the_template_takes_strings_and_gives_every_message_its_role(omni: Omni) -> None:
    text = omni.processor.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "user", "content": [{"type": "audio"}, {"type": "image"}]},
        ],
        add_generation_prompt=True,
        tokenize=False,
    )

    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im")
    assert "<|im_start|>assistant\nHi<|im_end|>\n" in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert text.count(omni.processor.audio_token) == 1
    assert text.count(omni.processor.image_token) == 1


def test_codes_can_be_heard_and_told_apart(cache: WeightsCache) -> None:
    with quiet_transformers():
        model = OMNI["qwen3-omni"].from_pretrained(cache.prepare(tiny_recipe("qwen3-omni"))).eval()
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 512, (2, 4, 20), generator=generator)

    with torch.no_grad():
        first, second = model.code2wav(codes)[:, 0]

    assert 0.01 < float(first.std()) < 0.5
    assert float((first - second).abs().max()) > 0.01


def test_the_voices_of_qwen2_5_omni_come_with_it(cache: WeightsCache) -> None:
    folder = cache.prepare(tiny_recipe("qwen2.5-omni"))

    voices = torch.load(folder / "spk_dict.pt", weights_only=True)

    assert sorted(voices) == ["Chelsie", "Ethan"]
    assert len({voice["bos_token"] for voice in voices.values()}) == len(voices)
