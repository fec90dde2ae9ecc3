"""Speech codes to a spectrogram: noise that flows to speech along an ordinary differential equation.

The arithmetic is that of `Qwen2_5OmniToken2WavDiTModel.sample`, with two differences that change no
number. The noise comes from the request's own seed, where `sample` draws from torch's generator for
everybody; it is drawn on the CPU whatever the device, where the noise for some codes begins like the
noise for more of them, and where a seed means the same everywhere. And the mask of which block of
frames may look at which is kept once for all heads and rows, instead of once for each.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any, Final

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

from omnistage_stage.engines.torch.qwen2_5_omni.voices import Voice
from omnistage_stage.engines.torch.sampling import seeded_generator

__all__ = ["Flow"]

_PER_STEP: Final = 4
"""Evaluations of a Runge-Kutta step."""
_UNGUIDED: Final = 1e-5
"""Guidance below this is none, as in `sample`."""


class Flow:
    """The flow of one model; for the thread that computes."""

    def __init__(self, dit: Any, *, points: int, guidance: float, sway: float) -> None:
        """Takes the model and how it is solved.

        Args:
            dit: A `Qwen2_5OmniToken2WavDiTModel`.
            points: In time, the first and the last included: `num_steps` of `sample`.
            guidance: Of the condition over none.
            sway: How far the points lean towards the noise.
        """
        self._dit = dit
        self._points = points
        self._guidance = guidance
        self._sway = sway
        dit._create_block_diff = MethodType(_block_difference, dit)  # noqa: SLF001

    @property
    def steps(self) -> int:
        """Steps from noise to speech."""
        return self._points - 1

    @property
    def look_ahead(self) -> int:
        """Blocks of frames that a block depends on ahead of itself.

        One for each layer that looks ahead, in every evaluation.
        """
        ahead = sum(block.look_ahead_block for block in self._dit.transformer_blocks)
        return int(ahead) * _PER_STEP * self.steps

    def spectrogram(
        self, codes: Any, voice: Voice, seed: int, advance: Callable[[int], None]
    ) -> Any:
        """The spectrogram of some codes.

        Args:
            codes: int64 [codes], at least one, on the CPU.
            voice: Who speaks.
            seed: Of the noise.
            advance: Called before every evaluation with the steps that are done. What it raises ends
                the flow.

        Returns:
            float32 [1, mel bins, frames], on the model's device.
        """
        device = self._dit.device
        frames = len(codes) * self._dit.repeats
        noise = torch.randn(
            (1, frames, self._dit.mel_dim), generator=seeded_generator(seed, torch.device("cpu"))
        )
        condition = {
            "quantized_code": codes[None].to(device),
            "speaker_embedding": voice.embedding.to(device)[:, None].repeat(1, frames, 1),
            "condition_vector": voice.reference.to(device),
        }
        solver = RungeKutta4ODESolver(
            function=_Field(self._dit, condition, guidance=self._guidance, advance=advance),
            initial_value=noise.to(device),
        )
        with torch.inference_mode():
            return solver.integrate(self._times())[-1].permute(0, 2, 1)

    def _times(self) -> Any:
        times = torch.linspace(0, 1, self._points, device=self._dit.device)
        return times + self._sway * (torch.cos(torch.pi / 2 * times) - 1 + times)


class _Field:
    """The direction in which a state flows at a time."""

    def __init__(
        self,
        dit: Any,
        condition: dict[str, Any],
        *,
        guidance: float,
        advance: Callable[[int], None],
    ) -> None:
        self._dit = dit
        self._condition = condition
        self._guidance = guidance
        self._advance = advance
        self._evaluations = 0

    def __call__(self, time: Any, state: Any) -> Any:
        self._advance(self._evaluations // _PER_STEP)
        self._evaluations += 1
        guided = self._guidance >= _UNGUIDED
        direction = self._dit(
            hidden_states=state, time_step=time, apply_cfg=guided, **self._condition
        )
        if not guided:
            return direction
        towards, free = torch.chunk(direction, 2, dim=0)
        return towards + (towards - free) * self._guidance


def _block_difference(dit: Any, hidden_states: Any) -> Any:
    """How many blocks each frame is ahead of each other, [1, 1, frames, frames]."""
    places = torch.arange(hidden_states.shape[1], device=hidden_states.device)
    blocks = places // dit.block_size
    return (blocks[None, :] - blocks[:, None])[None, None]
