"""What Qwen3-Omni's talker reads: the user's part of the prompt, its own part, then text row by row.

The talker sees text through a projection of the thinker's embeddings, and pictures and sounds through
a projection of the thinker's hidden states at one layer. Its prefill is the user's turns followed by
nine rows of its own turn; every further row of text is added to one decoding step.

A float32 row that comes out of a matrix product may depend, in its last bit, on how many rows went
in. Prompt rows are therefore projected all together, as `generate` does. Rows of the answer come one
by one here and all at once there; they are projected in blocks of at least `_ROWS` rows, from where
on CPU kernels give a row the same bits whatever is beside it.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from msgspec import Struct

from omnistage_common.errors import EngineFailed

__all__ = ["Prompt", "PromptReader", "SpecialTokens", "special_tokens"]

_ROWS: Final = 4
_ROLE: Final = 3
"""Rows of the assistant's turn before its text: `<|im_start|>`, `assistant`, newline."""
_SILENT: Final = 4
"""Rows of padding between these and the text's beginning."""


class SpecialTokens(Struct, frozen=True, kw_only=True):
    """Ids that mean something to the talker, in the thinker's vocabulary."""

    start: int
    """`<|im_start|>`."""
    stop: int
    """`<|im_end|>`."""
    user: int
    assistant: int
    speech: tuple[int, int, int]
    """Begin, end and padding of spoken text."""
    media: tuple[int, ...]
    """Placeholders of audio, images and videos."""
    placed: tuple[int, ...]
    """Those of them with a position of more than one dimension: images and videos."""


def special_tokens(config: Any) -> SpecialTokens:
    """The ids in a checkpoint's configuration, transformers' `Qwen3OmniMoeConfig`."""
    thinker = config.thinker_config
    placed = (thinker.image_token_id, thinker.video_token_id)
    return SpecialTokens(
        start=config.im_start_token_id,
        stop=config.im_end_token_id,
        user=config.user_token_id,
        assistant=config.assistant_token_id,
        speech=(config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id),
        media=(thinker.audio_token_id, *placed),
        placed=placed,
    )


class Prompt(Struct, frozen=True, kw_only=True):
    """What is known of a request before its answer begins."""

    tokens: tuple[int, ...]
    """All prompt ids, after placeholders were expanded."""
    hidden: Any
    """[rows, H]: the thinker's hidden states, needed where a picture or sound is; else None."""
    positions: Any
    """int64 [rows, 3]: the thinker's positions in time, height and width; needed where a picture
    is, else None."""

    def assistant_start(self, special: SpecialTokens) -> int:
        """Where the turn begins that the model is to complete.

        Raises:
            EngineFailed: There is none.
        """
        pair = (special.start, special.assistant)
        for index in range(len(self.tokens) - 2, -1, -1):
            if self.tokens[index : index + 2] == pair:
                return index
        raise EngineFailed("the prompt ends in no turn of the assistant; the talker speaks none")


class PromptReader:
    """Makes the talker's rows; for the thread that computes."""

    def __init__(self, talker: Any, embedding: Any, special: SpecialTokens) -> None:
        self._talker = talker
        self._embedding = embedding
        self._special = special
        config = talker.config
        self._codec = (
            config.codec_nothink_id,
            config.codec_think_bos_id,
            config.codec_think_eos_id,
            config.codec_pad_id,
            config.codec_bos_id,
        )
        rows = talker.text_projection(self._embedded([special.speech]))
        self._begin, self.end, self.pad = rows.chunk(3, dim=1)

    def text_rows(self, tokens: Sequence[int]) -> Any:
        """Rows of the answer's text, [len(tokens), h]."""
        padded = [*tokens, *[tokens[-1]] * (_ROWS - len(tokens))]
        return self._talker.text_projection(self._embedded([padded]))[0, : len(tokens)]

    def prefill(self, prompt: Prompt, turn: Sequence[int], speaker: int) -> tuple[Any, Any]:
        """What the talker reads before its first frame.

        Args:
            prompt: With hidden states and positions, where it needs them.
            turn: The first four tokens of the assistant's turn; the last begins the text.
            speaker: Codec id of the voice.

        Returns:
            Rows [1, n, h] and their positions [4, 1, n].
        """
        tokens = self._ids(prompt.tokens)
        chosen = self._users(tokens)
        rows = torch.cat((self._user_rows(prompt, tokens)[:, chosen], self._own(turn, speaker)), 1)
        return rows, self._positions(prompt, tokens, chosen, rows.shape[1])

    def _user_rows(self, prompt: Prompt, tokens: Any) -> Any:
        """All rows of the prompt as the talker would read them, [1, n, h]."""
        talker = self._talker
        media = torch.isin(tokens, self._ids(self._special.media))
        rows = torch.empty(
            (1, len(tokens), talker.config.text_config.hidden_size),
            dtype=talker.dtype,
            device=talker.device,
        )
        if media.any():
            hidden = prompt.hidden[: len(tokens)].to(device=talker.device, dtype=talker.dtype)
            rows[0, media] = talker.hidden_projection(hidden[media])
        rows[0, ~media] = talker.text_projection(self._embedding(tokens[~media]))
        return rows

    def _users(self, tokens: Any) -> Any:
        """Which rows are of a user's turn, as a mask."""
        places = torch.arange(len(tokens), device=tokens.device)
        starts = torch.where(tokens == self._special.start, places, places.new_full((), -1))
        start = torch.cummax(starts, dim=-1).values.clamp_min(0)
        return tokens[(start + 1).clamp_max(len(tokens) - 1)] == self._special.user

    def _own(self, turn: Sequence[int], speaker: int) -> Any:
        """The nine rows in which the talker's own turn begins, [1, 9, h]."""
        role, first = self.text_rows(turn)[None].split((_ROLE, 1), dim=1)
        text = torch.cat((role, self.pad.expand(-1, _SILENT, -1), self._begin, first), dim=1)
        *thinking, padding, begin = self._codec
        codec = self._talker.get_input_embeddings()(
            self._ids([*thinking, speaker, padding, begin])[None]
        )
        silence = torch.zeros_like(text[:, :_ROLE])
        return text + torch.cat((silence, codec), dim=1)

    def _positions(self, prompt: Prompt, tokens: Any, chosen: Any, length: int) -> Any:
        plain = torch.arange(length, device=tokens.device)
        places = plain.view(1, 1, -1).expand(3, 1, -1)
        if torch.isin(tokens[chosen], self._ids(self._special.placed)).any():
            positions = prompt.positions[: len(tokens)].to(tokens.device)
            places = _renumbered(positions, chosen, tail=length - int(chosen.sum()))
            places = places.T.unsqueeze(1)
        return torch.cat((plain.view(1, 1, -1), places), dim=0)

    def _embedded(self, tokens: Sequence[Sequence[int]]) -> Any:
        return self._embedding(self._ids(tokens))

    def _ids(self, tokens: Sequence[Any]) -> Any:
        return torch.tensor(tokens, dtype=torch.long, device=self._talker.device)


def _renumbered(positions: Any, chosen: Any, *, tail: int) -> Any:
    """Positions of the chosen rows as if the others had never been, then of `tail` rows of text.

    A turn begins with text and its positions grow from there, so that what precedes it only shifts
    it as a whole. Between two rows that follow one another nothing changes; where rows were left
    out, the next begins one after the highest so far.

    Args:
        positions: [n, 3], of all rows.
        chosen: bool [n].
        tail: Rows that follow.

    Returns:
        [chosen + tail, 3].
    """
    pieces = []
    following = 0
    kept = chosen.nonzero().flatten()
    turns = torch.tensor_split(kept, ((kept.diff() > 1).nonzero().flatten() + 1).cpu())
    for turn in turns:
        piece = positions[turn] - positions[turn[0]].min() + following
        following = int(piece.max()) + 1
        pieces.append(piece)
    ending = torch.arange(following, following + tail, device=positions.device)
    pieces.append(ending.unsqueeze(1).expand(-1, 3))
    return torch.cat(pieces)
