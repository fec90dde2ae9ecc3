"""What Qwen2.5-Omni's talker reads: all of the thinker's prompt, then its answer row by row.

Everywhere a row is the sum of two things of the thinker: what it was given (the token's embedding) and
what it made of it (the last hidden state). Pictures and sounds have no embedding of their own here:
their placeholders count as zeros, so that only the thinker's hidden state speaks of them.

The prefill is the prompt, a row that names the speaker, and the answer's first row; to the last two
the talker's own padding and beginning are added. Every further row of the answer goes into one
decoding step; after them comes a row that ends the text, and then padding.
"""

from typing import Any, Final

import torch
from msgspec import Struct

from omnistage_common.errors import EngineFailed

__all__ = ["Prompt", "PromptReader", "Row", "SpecialTokens", "special_tokens"]

_OWN: Final = 2
"""Rows of the prefill after the prompt."""


class SpecialTokens(Struct, frozen=True, kw_only=True):
    """Ids that mean something to the talker, and the bounds of what it can read."""

    media: tuple[int, ...]
    """Placeholders of audio, images and videos in the thinker's vocabulary."""
    placed: tuple[int, ...]
    """Those of them with a position of more than one dimension: images and videos."""
    text_end: int
    text_padding: int
    codec_mask: int
    """Stands for the prompt among the codes."""
    codec_padding: int
    codec_begin: int
    codec_end: int
    vocabulary: int
    """Tokens of the thinker."""
    width: int
    """Elements of a hidden state."""


def special_tokens(config: Any) -> SpecialTokens:
    """The ids in a checkpoint's configuration, transformers' `Qwen2_5OmniConfig`."""
    thinker, talker = config.thinker_config, config.talker_config
    placed = (thinker.image_token_index, thinker.video_token_index)
    return SpecialTokens(
        media=(thinker.audio_token_index, *placed),
        placed=placed,
        text_end=talker.tts_text_end_token_id,
        text_padding=talker.tts_text_pad_token_id,
        codec_mask=talker.tts_codec_mask_token_id,
        codec_padding=talker.tts_codec_pad_token_id,
        codec_begin=talker.tts_codec_start_token_id,
        codec_end=talker.tts_codec_end_token_id,
        vocabulary=thinker.text_config.vocab_size,
        width=talker.embedding_size,
    )


class Row(Struct, frozen=True):
    """One token of the answer."""

    token: int
    hidden: Any
    """[H]: what the thinker made of it."""


class Prompt(Struct, frozen=True, kw_only=True):
    """What is known of a request before its answer begins."""

    tokens: tuple[int, ...]
    """All prompt ids, after placeholders were expanded."""
    hidden: Any
    """[rows, H]: the thinker's last hidden states."""
    positions: Any
    """int64 [rows, 3]: the thinker's positions in time, height and width; needed where a picture
    is, else None."""


class PromptReader:
    """Makes the talker's rows; for the thread that computes."""

    def __init__(self, talker: Any, embedding: Any, special: SpecialTokens) -> None:
        self._talker = talker
        self._embedding = embedding
        self._special = special
        self.end = self._embedded((special.text_end,))
        """[1, 1, H]: ends the text."""
        self.pad = self._embedded((special.text_padding,))
        """[1, 1, H]: after its end."""

    def answer_row(self, row: Row) -> Any:
        """A row of the answer, [1, 1, H]."""
        return self._placed(row.hidden)[None, None] + self._embedded((row.token,))

    def prefill(self, prompt: Prompt, speaker: int, first: Row) -> tuple[Any, Any]:
        """What the talker reads before its first code.

        Args:
            prompt: With positions where it needs them.
            speaker: Text id of the voice.
            first: Of the answer.

        Returns:
            Rows [1, n, H] and their positions [3, 1, n].

        Raises:
            EngineFailed: Hidden states or positions are missing or too few.
        """
        count = len(prompt.tokens)
        if prompt.hidden is None or len(prompt.hidden) < count:
            raise EngineFailed("the talker needs `prompt_hidden_states` for all of the prompt")
        tokens = torch.tensor(prompt.tokens, dtype=torch.long, device=self._talker.device)
        given = self._embedding(tokens)
        given[torch.isin(tokens, self._ids(self._special.media))] = 0
        special = self._special
        codec = self._talker.get_input_embeddings()(
            self._ids((special.codec_padding, special.codec_begin))[None]
        )
        rows = torch.cat(
            (
                (self._placed(prompt.hidden[:count]) + given)[None],
                self._embedded((speaker,)) + codec[:, :1],
                self.answer_row(first) + codec[:, 1:],
            ),
            dim=1,
        )
        return rows, self._positions(prompt, tokens)

    def _positions(self, prompt: Prompt, tokens: Any) -> Any:
        count = len(tokens)
        if not torch.isin(tokens, self._ids(self._special.placed)).any():
            plain = torch.arange(count + _OWN, device=tokens.device)
            return plain.view(1, 1, -1).expand(3, 1, -1)
        if prompt.positions is None or len(prompt.positions) < count:
            raise EngineFailed(
                "the prompt has pictures; the talker needs the thinker's `prompt_positions` for "
                "all of it"
            )
        places = prompt.positions[:count].to(tokens.device)
        own = torch.arange(1, _OWN + 1, device=tokens.device) + places.max()
        return torch.cat((places, own[:, None].expand(-1, 3))).T.unsqueeze(1)

    def _placed(self, hidden: Any) -> Any:
        return hidden.to(device=self._talker.device, dtype=self._talker.dtype)

    def _embedded(self, tokens: tuple[int, ...]) -> Any:
        return self._embedding(self._ids(tokens)[None])

    def _ids(self, tokens: tuple[int, ...]) -> Any:
        return torch.tensor(tokens, dtype=torch.long, device=self._talker.device)
