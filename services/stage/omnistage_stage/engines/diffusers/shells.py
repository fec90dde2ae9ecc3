"""A submodule in shape only (foreign: torch).

A pipeline asks its submodules for more than computation: a denoiser must know by how much the VAE
shrinks an image, a decoder how the transformer cuts it into patches. So a component that does not
compute with a submodule gets its shell: made from `config.json` on torch's meta device, with every
attribute of the real one and no weights. It is no `torch.nn.Module`, so a pipeline neither moves it
nor asks it for a device, and calling it is an error.
"""

import json
from pathlib import Path
from typing import Any

import torch

__all__ = ["Shell"]


class Shell:
    """Stands where a submodule would."""

    def __init__(self, of: Any, folder: Path) -> None:
        """Makes the shell of a diffusers model class, by the configuration in a folder."""
        config = json.loads((folder / "config.json").read_bytes())
        with torch.device("meta"):
            self._module = of.from_config(config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)
