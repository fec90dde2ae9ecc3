"""What diffusers makes of a prompt in one process: the reference for services."""

import warnings
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline

from fakes.diffusion import TINY
from omnistage_common.payloads import PayloadKind
from omnistage_stage.weights import silent, weights_of

__all__ = ["DiffusersReference"]


class DiffusersReference:
    """The pipeline of a family, called as its users call it."""

    def __init__(self, family: str) -> None:
        torch.set_num_threads(1)
        self._family = TINY[family]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*weight_norm.* is deprecated")
            folder = weights_of(self._family.model).prepare(silent)
            self._pipeline = DiffusionPipeline.from_pretrained(folder)
        self._pipeline.set_progress_bar_config(disable=True)
        self._called = {
            name: value
            for name, value in self._family.called.items()
            if name != "max_sequence_length"
        }

    def made(self, prompt: str, seed: int) -> Any:
        """An array: pixels as 8-bit numbers, or samples."""
        sounds = self._family.kind is PayloadKind.WAVEFORM
        (result,) = self._pipeline(
            prompt=prompt,
            generator=torch.Generator().manual_seed(seed),
            output_type="np" if sounds else "pil",
            **self._called,
        )[0]
        if sounds:
            return result.T
        if self._family.kind is PayloadKind.IMAGE:
            return np.asarray(result)
        return np.stack([np.asarray(frame) for frame in result])
