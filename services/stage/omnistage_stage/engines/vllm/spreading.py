"""How a model is spread over the devices of a node, as vLLM is told; it starts a process for each."""

import os
from typing import Any

from msgspec import Struct

from omnistage_common.errors import SetupError
from omnistage_stage.engines.protocol import EngineSpec
from omnistage_stage.engines.vllm.arguments import VllmArguments

__all__ = ["Spread", "spread_of"]


class Spread(Struct, frozen=True, kw_only=True):
    """How many devices there are, and what each does."""

    tensor: int = 1
    """Devices that share every layer."""
    pipeline: int = 1
    """Groups of layers."""

    @property
    def devices(self) -> int:
        """All of them."""
        return self.tensor * self.pipeline

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of vLLM's `EngineArgs`."""
        return {
            "tensor_parallel_size": self.tensor,
            "pipeline_parallel_size": self.pipeline,
        }

    def set_environment(self) -> None:
        """Tells vLLM how it starts processes."""
        if self.devices > 1:
            # This process has threads, and a copy of it would have their locks.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
            # On CPUs vLLM would give each process cores of its own, and refuse where there are too few.
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def spread_of(spec: EngineSpec, arguments: VllmArguments) -> Spread:
    """What a stage asks for.

    Raises:
        SetupError: It asks for what vLLM does otherwise, or for two things at once.
    """
    asked = spec.parallelism
    if asked.data > 1:
        raise SetupError(
            "engine vllm keeps one copy of the model in a replica; write `replicas` instead of"
            " `parallelism.data`",
            field="parallelism.data",
        )
    if asked.devices > 1 and arguments.tensor_parallel_size not in {1, asked.tensor}:
        raise SetupError(
            f"engineArgs.tensor_parallel_size is {arguments.tensor_parallel_size} beside"
            f" `parallelism.tensor` {asked.tensor}; keep one of them",
            field="engineArgs.tensor_parallel_size",
        )
    return Spread(tensor=max(asked.tensor, arguments.tensor_parallel_size), pipeline=asked.pipeline)
