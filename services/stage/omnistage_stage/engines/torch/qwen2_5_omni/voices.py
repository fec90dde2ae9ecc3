"""The speakers of a Qwen2.5-Omni checkpoint: `spk_dict.pt`, read without running what is in it.

A speaker is three things: the token that tells the talker whose turn it is, and for the vocoder an
embedding of the voice and a spectrogram of some speech of it. Names are told apart without regard to
case.
"""

from collections.abc import Iterator, Mapping
from pickle import UnpicklingError
from typing import Any, Final

import torch
from msgspec import Struct

from omnistage_common.errors import InvalidRequest, InvalidWeights, SetupError, truncated
from omnistage_stage.engines.torch.checkpoints import Checkpoint

__all__ = ["Voice", "Voices", "read_voices"]

_FILE: Final = "spk_dict.pt"
_DEFAULT: Final = "Chelsie"
"""Whom `generate` lets speak where nobody is named."""
_RANKS: Final = {"cond": 2, "ref_mel": 3}


class Voice(Struct, frozen=True, kw_only=True):
    """A speaker."""

    name: str
    token: int
    """Text id that begins the talker's own turn."""
    embedding: Any
    """Of the voice, float32 [1, size]."""
    reference: Any
    """Spectrogram of some speech, float32 [1, frames, mel bins]."""


class Voices:
    """The speakers, and who speaks where nobody is named."""

    def __init__(self, voices: Mapping[str, Voice], *, default: str | None) -> None:
        """Takes the speakers of a checkpoint.

        Args:
            voices: Name -> speaker; not empty.
            default: The stage's `engineArgs.voice`.

        Raises:
            SetupError: There is no such speaker as the default.
        """
        self._voices = {name.lower(): voice for name, voice in voices.items()}
        wanted = _DEFAULT if default is None else default
        voice = self._voices.get(wanted.lower())
        if voice is None and default is not None:
            raise SetupError(
                f"engineArgs.voice: there is no voice {default!r}; the checkpoint has {self.known}",
                field="engineArgs.voice",
            )
        self._default = voice or next(iter(self._voices.values()))

    def __iter__(self) -> Iterator[Voice]:
        return iter(self._voices.values())

    @property
    def default(self) -> Voice:
        """Who speaks where nobody is named."""
        return self._default

    @property
    def known(self) -> str:
        """All names, for people."""
        return ", ".join(sorted(voice.name for voice in self._voices.values()))

    def find(self, name: str | None) -> Voice:
        """The speaker that a request wants.

        Raises:
            InvalidRequest: There is none of that name; says which there are.
        """
        if name is None:
            return self._default
        voice = self._voices.get(name.lower())
        if voice is None:
            raise InvalidRequest(
                f"there is no voice {name!r}; this model has {self.known}", field="voice"
            )
        return voice


def read_voices(checkpoint: Checkpoint, *, default: str | None) -> Voices:
    """The speakers of a checkpoint.

    Args:
        checkpoint: With `spk_dict.pt` beside the weights.
        default: The stage's `engineArgs.voice`.

    Raises:
        InvalidWeights: The file is missing, broken, or lacks something; names it.
        SetupError: There is no such speaker as the default.
    """
    path = checkpoint.require_file(_FILE)
    try:
        speakers = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, UnpicklingError) as error:
        raise InvalidWeights(
            f"{path} cannot be read: {truncated(str(error))}", field="model"
        ) from error
    if not isinstance(speakers, dict) or not speakers:
        raise InvalidWeights(f"{path} holds no speakers by name", field="model")
    voices = {str(name): _voice(f"{path}: {name}", str(name), it) for name, it in speakers.items()}
    return Voices(voices, default=default)


def _voice(where: str, name: str, speaker: Any) -> Voice:
    fields = speaker if isinstance(speaker, Mapping) else {}
    token = fields.get("bos_token")
    if isinstance(token, torch.Tensor) and token.numel() == 1:
        token = token.item()
    if not isinstance(token, int):
        raise InvalidWeights(f"{where} has no bos_token, a token id", field="model")
    return Voice(
        name=name,
        token=token,
        embedding=_tensor(where, fields, "cond"),
        reference=_tensor(where, fields, "ref_mel"),
    )


def _tensor(where: str, fields: Mapping[str, Any], field: str) -> Any:
    values, rank = fields.get(field), _RANKS[field]
    if not isinstance(values, torch.Tensor) or values.ndim != rank or len(values) != 1:
        raise InvalidWeights(
            f"{where} has no {field}, a tensor of {rank} dimensions, the first of 1", field="model"
        )
    return values.float()
