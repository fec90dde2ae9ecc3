"""Lets torchvision be imported beside a torch of another build (foreign: torch, torchvision, vllm).

PyPI's torchvision is linked against CUDA. Beside a torch built for CPUs its library of operators
cannot be loaded, and its import fails at the first operator that it wants to describe. The image
transforms that models' processors use need none of them. So where they are missing, and only there,
their signatures are declared: the import works, and whoever calls such an operator is told that it
is not there.
"""

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

__all__ = ["ensure_torchvision"]

_MISSING: Final = "operator torchvision::nms does not exist"
_SIGNATURES: Final = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_declared: list[Any] = []
"""Declarations last as long as the object that made them."""


def ensure_torchvision(architectures: Sequence[str]) -> bool:
    """Makes torchvision importable, for this process and for what vLLM does with this model.

    Args:
        architectures: Of the checkpoint. vLLM looks at model classes in a process of its own,
            where nothing is declared; these are looked at here instead.

    Returns:
        Whether anything had to be done.
    """
    if find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
    else:
        return False
    _declare()
    importlib.import_module("torchvision")
    _register(architectures)
    return True


def _declare() -> None:
    import torch  # noqa: PLC0415

    library = torch.library.Library("torchvision", "FRAGMENT")
    for signature in _SIGNATURES:
        library.define(signature)
    _declared.append(library)


def _register(architectures: Sequence[str]) -> None:
    from vllm import ModelRegistry  # noqa: PLC0415

    for architecture in architectures:
        if known := ModelRegistry.models.get(architecture):
            ModelRegistry.register_model(architecture, known.load_model_cls())
