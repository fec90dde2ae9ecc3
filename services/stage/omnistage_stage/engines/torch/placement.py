"""Where and how a stage computes: device, element type, threads of CPU kernels.

`import_torch` sets what OpenMP and transformers read when they are imported; `Placement.enter` is for
the thread that computes, since OpenMP keeps the number of threads per thread.
"""

import os
from types import ModuleType
from typing import Any

from msgspec import Struct

from omnistage_common.errors import MissingDependency, SetupError
from omnistage_stage.engines.torch.arguments import PlacementArguments

__all__ = ["Placement", "import_torch", "place"]


class Placement(Struct, frozen=True, kw_only=True):
    """Where and how a stage computes."""

    device: Any
    """A `torch.device`."""
    dtype: Any
    """The `torch.dtype` of weights and activations."""
    omp_threads: int = 1

    @property
    def on_cpu(self) -> bool:
        """Whether the kernels are the CPU's."""
        return str(self.device) == "cpu"

    @property
    def exact(self) -> bool:
        """Whether the same shapes give the same bits here: float32 on a CPU."""
        return self.on_cpu and str(self.dtype) == "torch.float32"

    def enter(self) -> None:
        """Prepares the calling thread to compute; each that does calls it once."""
        import torch  # noqa: PLC0415

        torch.set_num_threads(self.omp_threads)


def import_torch(omp_threads: int) -> ModuleType:
    """Torch, with transformers beside it, imported for the first time perhaps.

    Raises:
        MissingDependency: One of them is not installed.
    """
    os.environ["OMP_NUM_THREADS"] = str(omp_threads)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import torch  # noqa: PLC0415
        from transformers.utils import logging  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(
            f"the torch engine cannot import its runtime ({error}). Install it: "
            "pip install 'omnistage[torch]'"
        ) from error
    logging.disable_progress_bar()
    return torch  # type: ignore[no-any-return]


def place(arguments: PlacementArguments) -> Placement:
    """Resolves the arguments on this machine.

    Raises:
        MissingDependency: Torch is not installed.
        SetupError: There is no such device here.
    """
    torch = import_torch(arguments.omp_threads)
    wanted = arguments.device
    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SetupError(
            f"engineArgs.device: {wanted!r} cannot be used here: {error}", field="engineArgs.device"
        ) from error
    dtype = arguments.dtype
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else "bfloat16"
    return Placement(device=device, dtype=getattr(torch, dtype), omp_threads=arguments.omp_threads)
