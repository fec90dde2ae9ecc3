"""A small Qwen2.5-Omni with something to say, and what transformers' own `generate` makes of it.

The weights are the tiny checkpoint's, with larger ones in the talker, so that what it reads changes what
it says, and in the vocoder, so that it can be heard.

`generate` is given the question with one token of padding before it, as in a batch of several. Without,
transformers 5.18 and later forget the mask before the talker sees it, and the talker without a mask
leaves out the codes that begin its speech, and the positions of pictures: what it says would depend on
whether a longer question is in the batch.
"""

import warnings
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

import torch
from msgspec import Struct
from transformers import Qwen2_5OmniForConditionalGeneration as Model

from fakes.engine_io import engine_request
from omnistage_common.payloads import Parameters, Payload, PayloadKind
from omnistage_stage.engines.protocol import EngineRequest
from omnistage_stage.engines.torch.conversion import to_payload
from omnistage_stage.weights import weights_of

__all__ = [
    "PADDING",
    "Spoken",
    "ask",
    "codes_payload",
    "load_model",
    "rows_payload",
    "some_codes",
    "speak",
    "stops",
    "tokens_payload",
    "vocode",
    "with_speakers",
    "write_model",
]

PADDING: Final = 50
_AUDIO_MEL_FRAMES: Final = 200
_IMAGE_GRID: Final = (1, 8, 6)
"""Patches in time, height and width."""
_SCALES: Final = {"talker": 1.1, "code2wav_dit_model": 1.2, "code2wav_bigvgan_model": 0.8}
"""Size of what a layer makes of inputs of size one."""


class Spoken(Struct, frozen=True, kw_only=True):
    """One run of `generate`."""

    prompt: list[int]
    hidden: Any
    """The thinker's last hidden states of the prompt, [rows, H]."""
    positions: Any
    """Of the prompt, [rows, 3]."""
    answer: list[int]
    answer_hidden: Any
    """Of the answer's tokens but the last, [rows, H]."""
    codes: Any
    """int64 [codes, 1]."""
    samples: Any
    """float32 [samples]."""


def write_model(folder: Path) -> Path:
    """Writes the checkpoint; returns its folder."""
    source = weights_of("tiny://qwen2.5-omni").prepare(lambda _line: None)
    model = load_model(source)
    torch.manual_seed(13)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = next((size for part, size in _SCALES.items() if part in name), None)
            if scale is not None and weight.ndim > 1 and "codec_head" not in name:
                weight.normal_(0, scale * weight[0].numel() ** -0.5)
    model.save_pretrained(folder)
    # As it was written, with what transformers leaves out.
    for name in ("config.json", "spk_dict.pt"):
        copyfile(source / name, folder / name)
    return folder


def with_speakers(folder: Path, target: Path, speakers: Any) -> Path:
    """The checkpoint once more, with other speakers; returns its folder.

    Args:
        folder: The checkpoint.
        target: An empty folder.
        speakers: What `spk_dict.pt` shall hold; bytes: what it shall be; None: it is missing.
    """
    for file in folder.iterdir():
        if file.name != "spk_dict.pt":
            (target / file.name).symlink_to(file)
    if isinstance(speakers, bytes):
        (target / "spk_dict.pt").write_bytes(speakers)
    elif speakers is not None:
        torch.save(speakers, target / "spk_dict.pt")
    return target


def load_model(folder: Path) -> Any:
    """The whole model, as transformers loads it."""
    return Model.from_pretrained(folder, dtype=torch.float32).eval()


def speak(
    model: Any,
    *,
    words: int,
    seed: int = 0,
    sampled: bool = False,
    voice: str = "Chelsie",
    media: tuple[str, ...] = (),
    codes: int = 14,
    points: int = 2,
) -> Spoken:
    """Lets the model answer a question of some length, so that it has something to say.

    Args:
        model: As loaded.
        words: Tokens of the question.
        seed: Given to torch before `generate`.
        sampled: Whether the talker samples. It then advances torch's generator, which is set again
            before the vocoder draws its noise: each stage has its own.
        voice: Who speaks.
        media: `audio`, `image` or both: what the question has besides words.
        codes: Most codes.
        points: Of the vocoder in time; `generate` has 10.
    """
    for attempt in range(50):
        prompt = _prompt(model.config, words=words, salt=37 * attempt, media=media)
        run = _Run(model, seed=seed, sampled=sampled)
        try:
            spoken = run.generate(prompt, voice=voice, media=media, codes=codes, points=points)
        except RuntimeError:
            # An answer that ends at once is more than `generate` can speak.
            continue
        if len(spoken.answer) >= 4 and len(spoken.codes) >= 6:
            return spoken
    raise AssertionError("the model says nothing, whatever it is asked")


def some_codes(count: int, *, seed: int = 0) -> Any:
    """Codes without a meaning, int64 [count, 1]."""
    return torch.randint(0, 500, (count, 1), generator=torch.Generator().manual_seed(seed))


def vocode(model: Any, codes: Any, *, seed: int, voice: str = "Chelsie", **options: Any) -> Any:
    """The model's own `token2wav`."""
    speaker = model.speaker_map[voice]
    torch.manual_seed(seed)
    with torch.no_grad():
        return model.token2wav(
            codes.T, conditioning=speaker["cond"], reference_mel=speaker["ref_mel"], **options
        ).flatten()


def ask(spoken: Spoken, **parameters: Any) -> EngineRequest:
    """The same question to a talker, with everything at hand; one payload per row of the answer."""
    return engine_request(
        {
            "prompt_tokens": (tokens_payload(spoken.prompt),),
            "prompt_hidden_states": (rows_payload(spoken.hidden),),
            "prompt_positions": (to_payload(spoken.positions, PayloadKind.TOKENS),),
            "tokens": tuple(tokens_payload([token]) for token in spoken.answer),
            "hidden_states": tuple(rows_payload(row) for row in spoken.answer_hidden.split(1)),
        },
        Parameters(**parameters),
    )


def tokens_payload(tokens: list[int]) -> Payload:
    """Ids as they travel."""
    return to_payload(torch.tensor(tokens, dtype=torch.long), PayloadKind.TOKENS)


def rows_payload(rows: Any) -> Payload:
    """Hidden states as they travel."""
    return to_payload(rows, PayloadKind.HIDDEN_STATES)


def codes_payload(codes: Any) -> Payload:
    """Codes as they travel."""
    return to_payload(codes, PayloadKind.CODEC_FRAMES)


class _Run:
    """One call of `generate`, listened to."""

    def __init__(self, model: Any, *, seed: int, sampled: bool) -> None:
        self._model = model
        self._seed = seed
        self._sampled = sampled
        self._codes: Any = None
        self._thinker: Any = None

    def generate(
        self, prompt: list[int], *, voice: str, media: tuple[str, ...], codes: int, points: int
    ) -> Spoken:
        model, ids = self._model, torch.tensor([[PADDING, *prompt]])
        mask = torch.ones_like(ids)
        mask[:, 0] = 0
        inputs = _media(media)
        thinker, vocoder = model.thinker.generate, model.token2wav.forward
        model.thinker.generate, model.token2wav.forward = (
            lambda **arguments: self._think(thinker, arguments),
            lambda *arguments, **options: self._vocode(vocoder, arguments, options),
        )
        torch.manual_seed(self._seed)
        try:
            with warnings.catch_warnings():
                # `generate` warns of how it calls itself.
                warnings.simplefilter("ignore", UserWarning)
                sequences, samples = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    speaker=voice,
                    thinker_max_new_tokens=24,
                    thinker_do_sample=False,
                    talker_max_new_tokens=codes,
                    talker_do_sample=self._sampled,
                    token2wav_num_steps=points,
                    talker_eos_token_id=stops(model.config.talker_config),
                    **inputs,
                )
        finally:
            model.thinker.generate, model.token2wav.forward = thinker, vocoder
        last = [step[-1][0] for step in self._thinker.hidden_states]
        return Spoken(
            prompt=prompt,
            hidden=last[0][1:],
            positions=_positions(model, ids, mask, inputs)[1:],
            answer=sequences[0, ids.shape[1] :].tolist(),
            answer_hidden=torch.cat(last[1:]),
            codes=self._codes[0][:, None],
            samples=samples,
        )

    def _think(self, thinker: Any, arguments: dict[str, Any]) -> Any:
        self._thinker = thinker(**arguments)
        return self._thinker

    def _vocode(self, vocoder: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._codes = arguments[0]
        if self._sampled:
            torch.manual_seed(self._seed)
        return vocoder(*arguments, **options)


def stops(config: Any) -> list[int]:
    """What `generate` has as numbers of the published model."""
    return [config.tts_codec_pad_token_id, config.tts_codec_end_token_id]


def _prompt(config: Any, *, words: int, salt: int, media: tuple[str, ...]) -> list[int]:
    thinker = config.thinker_config
    question = [40 + (7 * word + salt) % 150 for word in range(words)]
    head, tail = question[: words // 2], question[words // 2 :]
    if "audio" in media:
        sound = [thinker.audio_token_index] * (_AUDIO_MEL_FRAMES // 4)
        head = [thinker.audio_start_token_id, *sound, thinker.audio_end_token_id, *head]
    if "image" in media:
        time, height, width = _IMAGE_GRID
        picture = [thinker.image_token_index] * (time * height * width // 4)
        tail = [thinker.vision_start_token_id, *picture, thinker.vision_end_token_id, *tail]
    return [60, 61, *head, *tail, 62]


def _media(media: tuple[str, ...]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    inputs: dict[str, Any] = {}
    if "audio" in media:
        inputs["input_features"] = torch.randn(1, 128, _AUDIO_MEL_FRAMES, generator=generator)
        inputs["feature_attention_mask"] = torch.ones(1, _AUDIO_MEL_FRAMES, dtype=torch.long)
    if "image" in media:
        time, height, width = _IMAGE_GRID
        patches = (time * height * width, 3 * 2 * 14 * 14)
        # `generate` hands what has no prefix to the talker too, which takes no pixels.
        inputs["thinker_pixel_values"] = torch.randn(patches, generator=generator)
        inputs["image_grid_thw"] = torch.tensor([_IMAGE_GRID])
    return inputs


def _positions(model: Any, ids: Any, mask: Any, inputs: dict[str, Any]) -> Any:
    lengths = inputs.get("feature_attention_mask")
    positions, _ = model.thinker.get_rope_index(
        ids,
        image_grid_thw=inputs.get("image_grid_thw"),
        attention_mask=mask,
        audio_seqlens=None if lengths is None else lengths.sum(1),
    )
    return positions[:, 0].T.long()
