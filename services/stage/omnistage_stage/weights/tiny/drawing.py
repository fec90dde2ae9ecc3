"""Weights that must be drawn with care, so that untrained models answer and stop (foreign: torch).

A freshly initialised head gives every id the same chance: it would say ids that stand for pictures
or for nothing, and would hardly ever stop. Here the choice among allowed ids is made sharp, other
ids get a logit of exactly 0, and the logit of the stop id varies more than the rest, so that it
wins every few tens of steps. Freshly initialised vocoders whisper at a millionth of full scale.
"""

from collections.abc import Iterable
from typing import Any, Final

__all__ = [
    "ENCODER_INITIALIZER_RANGE",
    "INITIALIZER_RANGE",
    "draw_convolutions",
    "draw_experts",
    "sharpen_head",
]

INITIALIZER_RANGE: Final = 0.08
"""Standard deviation of weights in narrow language models: with the 0.02 of wide ones they would
pass on their last token and little else."""
ENCODER_INITIALIZER_RANGE: Final = 0.2
"""The same for encoders of sound and pictures, so that these make a difference to an answer."""
_SPREAD: Final = 0.5
_STOP_SPREAD: Final = 0.9


def sharpen_head(weight: Any, allowed: Iterable[int], stop: int) -> None:
    """Writes the weights of a head in place.

    Args:
        weight: [vocabulary, hidden size]; drawn from torch's generator.
        allowed: Ids that the model may say.
        stop: Id at which it stops.
    """
    import torch  # noqa: PLC0415

    with torch.no_grad():
        drawn = torch.randn_like(weight) * _SPREAD
        weight.zero_()
        ids = torch.tensor(sorted(set(allowed) - {stop}))
        weight[ids] = drawn[ids]
        weight[stop] = drawn[stop] / _SPREAD * _STOP_SPREAD


def draw_experts(decoder: Any) -> None:
    """Draws the expert weights of a mixture, which transformers leaves as memory happens to be.

    Args:
        decoder: A module whose `layers` have `mlp.experts`.
    """
    import torch  # noqa: PLC0415

    with torch.no_grad():
        for layer in decoder.layers:
            for weight in layer.mlp.experts.parameters():
                weight.normal_(std=INITIALIZER_RANGE)


def draw_convolutions(vocoder: Any) -> None:
    """Draws the convolutions of a vocoder so that a signal keeps about its size."""
    from torch.nn import Conv1d, ConvTranspose1d  # noqa: PLC0415

    for module in vocoder.modules():
        if isinstance(module, Conv1d | ConvTranspose1d):
            module.reset_parameters()
