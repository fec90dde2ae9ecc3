"""Tokenizers of the tiny checkpoints (foreign: tokenizers, transformers).

Byte-level BPE, as the real models have, trained in milliseconds on a page written here. Ids are
never fixed numbers: whoever needs one asks the tokenizer, so that its training text may change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["chat_template", "chat_tokenizer", "prompt_tokenizer", "speakable_ids"]

_PAGE: Final = """\
A pipeline is a graph of stages. One stage reads what you say and thinks of an answer, the next one
turns the answer into sounds, and the last one makes a wave of them that you can hear. Each of them
runs where it runs best: on one machine, or on many, with as many copies as the work needs.
Hello, how are you? I am well, thank you. What is in this picture? There is a red house by the sea,
a small boat, two birds over the water and a cat on the wall. What did you hear in the recording?
Somebody was walking in the rain; then a door was opened, and a dog began to bark.
Please describe the image by its color, shape, size, texture, quantity, text, and by the spatial
relationships of the objects and the background. Paint a photo of the moon above a quiet street.
The sound of waves, of wind in the trees, of a train that goes away. You are a helpful assistant.
One, two, three, four, five, six, seven, eight, nine, ten. 0123456789 (yes), [no] "maybe"!
"""
_ROLES: Final = ("system", "user", "assistant")
_ROLE_LINES: Final = 64
"""Makes each role one token, as it is in the real vocabularies."""
_CHAT_VOCABULARY: Final = 512
_PROMPT_VOCABULARY: Final = 400
_PROMPT_SPECIAL: Final = {
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
}
"""In the order of their ids."""


def chat_tokenizer(special: Sequence[str], attributes: Mapping[str, str]) -> Any:
    """A tokenizer of a chat model.

    Args:
        special: Special tokens beside `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`.
        attributes: Name under which a processor asks for a special token -> the token.
    """
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    end, start, stop = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
    page = _PAGE.splitlines() + [f"{role}\n" for role in _ROLES for _ in range(_ROLE_LINES)]
    tokenizer = _trained(page, _CHAT_VOCABULARY, [end])
    tokenizer.add_special_tokens([start, stop, *special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=stop,
        pad_token=end,
        extra_special_tokens=dict(attributes),
        clean_up_tokenization_spaces=False,
    )


def prompt_tokenizer() -> Any:
    """A tokenizer for the text encoders of a diffusion pipeline; pads with id 0, ends with id 1."""
    from tokenizers import processors  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = _trained(_PAGE.splitlines(), _PROMPT_VOCABULARY, list(_PROMPT_SPECIAL.values()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **_PROMPT_SPECIAL,
        model_max_length=77,
        clean_up_tokenization_spaces=False,
    )


def speakable_ids(tokenizer: Any) -> list[int]:
    """Ids that stand for printable ASCII, so that an untrained model writes letters at least."""
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    texts = {id_: tokenizer.decode([id_]) for id_ in range(len(tokenizer)) if id_ not in special}
    return [id_ for id_, text in texts.items() if text.isascii() and text.isprintable()]


def chat_template(*, image: str, audio: str, video: str, greeting: str = "") -> str:
    """A Jinja template for messages whose content is a string or a list of parts.

    Args:
        image: What stands for an image.
        audio: What stands for a recording.
        video: What stands for a video.
        greeting: Text of a system message for conversations that bring none; empty: no such.
    """
    default = (
        "{% if loop.first and message.role != 'system' %}<|im_start|>system\n"
        f"{greeting}<|im_end|>\n{{% endif %}}"
    )
    return (
        "{% for message in messages %}"
        f"{default if greeting else ''}"
        "<|im_start|>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}"
        f"{{% if part.type in ('image', 'image_url') %}}{image}"
        f"{{% elif part.type in ('audio', 'input_audio', 'audio_url') %}}{audio}"
        f"{{% elif part.type in ('video', 'video_url') %}}{video}"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def _trained(lines: Sequence[str], vocabulary: int, special: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer
