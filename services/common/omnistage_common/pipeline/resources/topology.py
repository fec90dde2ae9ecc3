"""The graph of a model: its stages, what flows between them, what the client gets.

A template is written once by the people who made the model and does not change; where it runs and
how large belongs to runtimes and pipelines.
"""

from typing import Annotated

from pydantic import Field

from omnistage_common.payloads import PayloadKind
from omnistage_common.pipeline.plan import EdgeMode, Execution, Modality
from omnistage_common.pipeline.resources.values import (
    EngineArgs,
    EngineId,
    EnvVars,
    Model,
    ModelUri,
    PortName,
    StageId,
    StageLimits,
)

__all__ = [
    "ChunkPolicy",
    "FinalOutput",
    "Port",
    "RequestInput",
    "StageDefaults",
    "StageTemplate",
    "Topology",
    "TopologyEdge",
]


class RequestInput(Model):
    """Something a stage takes from the request itself."""

    name: PortName
    """What the request brings: `conversation` (its messages), `text` (its one text, e.g. the prompt
    for an image), `audio` (its recordings) or `image` (its images)."""
    kind: PayloadKind
    """What that is: `waveform` for `audio`, otherwise the same word as the name."""
    optional: bool = False
    """Whether the stage also runs on requests that do not bring it."""


class Port(Model):
    """Something a stage makes."""

    name: PortName
    """Name of the output, unique within the stage; edges and outputs refer to it, and it is the
    name under which a consumer receives it."""
    kind: PayloadKind
    """What it is."""


class StageDefaults(Model):
    """How a stage runs where neither runtime nor pipeline says otherwise."""

    engine: EngineId | None = None
    """Engine that computes the stage; a runtime, where one is named, must run the same."""
    model: ModelUri | None = None
    """Model source of this stage, e.g. `hf://org/name@revision`. A stage without one uses the
    pipeline's `model.source`."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of replicas."""
    engine_args: EngineArgs = Field(default={})
    """Arguments of the engine, which checks them; merged by key, later layers win."""
    env: EnvVars = ()
    """Environment variables; merged by name, later layers win."""
    limits: StageLimits = StageLimits()
    """Bounds of one replica."""


class StageTemplate(Model):
    """A node of the graph."""

    name: StageId
    """Name of the stage, unique within the topology, e.g. `thinker`."""
    execution: Execution
    """How it computes: token by token, in one go, or by denoising."""
    consumes: Annotated[tuple[RequestInput, ...], Field(max_length=8)] = ()
    """What it takes from the request itself; what it takes from other stages are edges."""
    produces: Annotated[tuple[Port, ...], Field(min_length=1, max_length=8)]
    """What it makes."""
    defaults: StageDefaults = StageDefaults()
    """How it runs where neither runtime nor pipeline says otherwise."""


_Frames = Annotated[int, Field(ge=1, le=1024)]


class ChunkPolicy(Model):
    """How a `Stream` edge gathers frames into chunks: early at first, then efficiently."""

    first_frames: Annotated[tuple[_Frames, ...], Field(min_length=1, max_length=8)] = (2, 4, 8, 16)
    """Frames of the first chunk, to choose from, rising: the busier the consumer, the more."""
    frames: _Frames = 25
    """Frames of every later chunk."""
    context_frames: Annotated[int, Field(ge=0, le=1024)] = 25
    """Frames before a chunk that a decoder without state looks at again; 0 for one that keeps what
    it needs."""


class TopologyEdge(Model):
    """A stage's output that another stage takes."""

    producer: StageId = Field(validation_alias="from", serialization_alias="from")
    """Stage that makes the output."""
    consumer: StageId = Field(validation_alias="to", serialization_alias="to")
    """Stage that takes it."""
    output: PortName
    """Name of the producer's output; the consumer receives it under the same name."""
    kind: PayloadKind | None = None
    """Kind the consumer expects; when set, it must be the kind the producer makes."""
    mode: EdgeMode = EdgeMode.FULL
    """`Full`: once, when the producer has ended. `Stream`: chunk by chunk, while it runs."""
    optional: bool = False
    """Whether the consumer also runs without this output: when the producer has nothing to do in a
    request, or runs and leaves the output out."""
    chunk: ChunkPolicy | None = None
    """How frames are gathered into chunks, on a `Stream` edge whose payload has frames; left out for
    pieces as they are made."""


class FinalOutput(Model):
    """A stage's output that the client gets."""

    stage: StageId
    """Stage that makes the output."""
    output: PortName
    """Name of the stage's output."""
    modality: Modality | None = None
    """What the client asks for to get it. Left out for a transcript of the client's own input,
    which is reported whenever its stage runs."""


class Topology(Model):
    """The graph: stages, edges and outputs."""

    stages: Annotated[tuple[StageTemplate, ...], Field(min_length=1, max_length=16)]
    """The stages."""
    edges: Annotated[tuple[TopologyEdge, ...], Field(max_length=64)] = ()
    """What flows between stages; without cycles."""
    outputs: Annotated[tuple[FinalOutput, ...], Field(min_length=1, max_length=8)]
    """What the client gets; at most one for each modality."""
