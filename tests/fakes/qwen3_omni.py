"""A small Qwen3-Omni with something to say, and what transformers' own `generate` makes of it.

The weights are the tiny checkpoint's, with larger ones in the talker, so that what it reads changes what
it says, and in the vocoder, so that it can be heard.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from transformers import Qwen3OmniMoeForConditionalGeneration as Model

from fakes.engine_io import engine_request
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest
from omnistage_stage.engines.torch.conversion import to_payload
from omnistage_stage.weights import weights_of

__all__ = [
    "Spoken",
    "ask",
    "frames_payload",
    "load_model",
    "speak",
    "tokens_payload",
    "write_model",
]

AUDIO_MEL_FRAMES = 200
IMAGE_GRID = (1, 8, 6)
"""Patches in time, height and width."""


class Spoken(Struct, frozen=True, kw_only=True):
    """One run of `generate`."""

    prompt: list[int]
    hidden: Any
    """The thinker's hidden states of the prompt, at the layer that the talker reads."""
    positions: Any
    """Of the prompt, [rows, 3]."""
    answer: list[int]
    codes: Any
    """int64 [frames, groups]."""
    samples: Any
    """float32 [samples]."""


def write_model(folder: Path) -> Path:
    """Writes the checkpoint; returns its folder."""
    source = weights_of("tiny://qwen3-omni").prepare(lambda _line: None)
    model = load_model(source)
    torch.manual_seed(11)
    with torch.no_grad():
        for name, weight in model.talker.named_parameters():
            if weight.ndim > 1 and not name.endswith("head.weight"):
                weight.normal_(0, 0.12)
        model.talker.codec_head.weight[model.config.talker_config.codec_eos_token_id] *= 0.7
        for name, weight in model.code2wav.named_parameters():
            if "layer_scale" in name or "gamma" in name:
                weight.fill_(0.3)
            elif weight.ndim > 1:
                weight.normal_(0, 0.8 * (weight[0].numel() ** -0.5))
    model.save_pretrained(folder)
    # As it was written, with what transformers leaves out.
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    return folder


def load_model(folder: Path) -> Any:
    """The whole model, as transformers loads it."""
    model = Model.from_pretrained(folder, dtype=torch.float32).eval()
    model.talker.config.audio_config = model.thinker.config.audio_config
    return model


def speak(
    model: Any,
    *,
    words: int,
    salt: int = 0,
    media: bool = False,
    seed: int | None = None,
    frames: int = 40,
    **arguments: Any,
) -> Spoken:
    """Lets the model answer a question of some length, so that it has something to say.

    Args:
        model: As loaded.
        words: Tokens of the question.
        salt: Makes another question.
        media: Whether the question has a sound and a picture.
        seed: For the talker; None: greedy.
        frames: Most codec frames.
        arguments: Of `generate`, in place of those chosen here. With fewer tokens than frames,
            speech goes on after the text.
    """
    chosen = {
        "speaker": "ethan",
        "thinker_max_new_tokens": 24,
        "thinker_eos_token_id": model.config.im_end_token_id,
        "talker_max_new_tokens": frames + 1,
    } | arguments
    for attempt in range(50):
        prompt = _prompt(model.config, words=words, salt=salt + 37 * attempt, media=media)
        try:
            spoken = _generate(model, prompt, media=media, seed=seed, **chosen)
        except RuntimeError:
            # An answer that ends at once is more than `generate` can speak.
            continue
        if len(spoken.answer) >= 4 and len(spoken.codes) >= 4:
            return spoken
    raise AssertionError("the model says nothing, whatever it is asked")


def ask(spoken: Spoken, **parameters: Any) -> EngineRequest:
    """The same question to a talker, with everything at hand; one payload per token."""
    return engine_request(
        {
            "prompt_tokens": (tokens_payload(spoken.prompt),),
            "prompt_hidden_states": (to_payload(spoken.hidden, PayloadKind.HIDDEN_STATES),),
            "prompt_positions": (to_payload(spoken.positions, PayloadKind.TOKENS),),
            "tokens": tuple(tokens_payload([token]) for token in spoken.answer),
        },
        Parameters(**parameters),
    )


def tokens_payload(tokens: list[int]) -> Payload:
    """Ids as they travel."""
    return to_payload(torch.tensor(tokens, dtype=torch.long), PayloadKind.TOKENS)


def frames_payload(codes: Any) -> Payload:
    """Codec frames as they travel."""
    return to_payload(codes, PayloadKind.CODEC_FRAMES)


def _prompt(config: Any, *, words: int, salt: int, media: bool) -> list[int]:
    thinker = config.thinker_config
    start, stop, line = config.im_start_token_id, config.im_end_token_id, 11
    question = [40 + (7 * word + salt) % 150 for word in range(words)]
    if media:
        pictures = IMAGE_GRID[0] * IMAGE_GRID[1] * IMAGE_GRID[2] // 4
        question = [
            thinker.audio_start_token_id,
            *[thinker.audio_token_id] * 26,
            thinker.audio_end_token_id,
            *question[: words // 2],
            thinker.vision_start_token_id,
            *[thinker.image_token_id] * pictures,
            thinker.vision_end_token_id,
            *question[words // 2 :],
        ]
    system = [start, config.system_token_id, line, 60, 61, stop, line]
    earlier = [start, config.user_token_id, line, 70, stop, line]
    answer = [start, config.assistant_token_id, line, 80, 81, stop, line]
    user = [start, config.user_token_id, line, *question, stop, line]
    return [*system, *earlier, *answer, *user, start, config.assistant_token_id, line]


def _generate(
    model: Any, prompt: list[int], *, media: bool, seed: int | None, **arguments: Any
) -> Spoken:
    heard: dict[str, Any] = {}
    thinker, talker = model.thinker.generate, model.talker.generate

    def think(**arguments: Any) -> Any:
        heard["thinker"] = thinker(**arguments)
        return heard["thinker"]

    def talk(**arguments: Any) -> Any:
        if seed is not None:
            torch.manual_seed(seed)
        heard["talker"] = talker(**arguments)
        return heard["talker"]

    ids = torch.tensor([prompt])
    inputs = _media() if media else {}
    model.thinker.generate, model.talker.generate = think, talk
    try:
        with warnings.catch_warnings():
            # `generate` warns of how it calls itself.
            warnings.simplefilter("ignore", UserWarning)
            sequences, samples = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                thinker_do_sample=False,
                talker_do_sample=seed is not None,
                **arguments,
                **inputs,
            )
    finally:
        model.thinker.generate, model.talker.generate = thinker, talker
    layer = model.config.talker_config.accept_hidden_layer
    codes = [hidden[-1] for hidden in heard["talker"].hidden_states if hidden[-1] is not None]
    return Spoken(
        prompt=prompt,
        hidden=heard["thinker"].hidden_states[0][layer][0],
        positions=_positions(model, ids, inputs),
        answer=sequences[0, len(prompt) :].tolist(),
        codes=torch.cat(codes),
        samples=samples.flatten(),
    )


def _media() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    time, height, width = IMAGE_GRID
    return {
        "input_features": torch.randn(1, 128, AUDIO_MEL_FRAMES, generator=generator),
        "feature_attention_mask": torch.ones(1, AUDIO_MEL_FRAMES, dtype=torch.long),
        "pixel_values": torch.randn(time * height * width, 3 * 2 * 16 * 16, generator=generator),
        "image_grid_thw": torch.tensor([IMAGE_GRID]),
    }


def _positions(model: Any, ids: Any, inputs: dict[str, Any]) -> Any:
    lengths = inputs.get("feature_attention_mask")
    positions, _ = model.thinker.get_rope_index(
        ids,
        image_grid_thw=inputs.get("image_grid_thw"),
        attention_mask=torch.ones_like(ids),
        audio_seqlens=None if lengths is None else lengths.sum(1),
    )
    return positions[:, 0].T.long()
