"""Frames: the steps in the life of one request on a link, as values."""

from enum import Enum

from msgspec import Struct

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import OmnistageError
from omnistage_common.ids import (
    HostId,
    Incarnation,
    OutputName,
    RequestId,
    RequestNumber,
    StreamToken,
)
from omnistage_common.payloads import Output, Parameters, TensorRef

__all__ = [
    "Cancel",
    "Credit",
    "Data",
    "Delivery",
    "End",
    "Error",
    "FinishReason",
    "Frame",
    "FromOpener",
    "FromReplica",
    "Inlet",
    "Open",
    "Outlet",
    "Phase",
    "Progress",
    "Release",
    "Status",
    "Subscribe",
    "Usage",
]


class Delivery(Enum):
    """When the opener wants outputs."""

    FINAL = "final"
    """With the end of the request."""
    DELTAS = "deltas"
    """As they are made."""


class FinishReason(Enum):
    """Why generation ended; the value is OpenAI's word for it."""

    NONE = ""
    """The stage does not generate."""
    STOP = "stop"
    """The model said so, or a stop string was met."""
    LENGTH = "length"
    """`max_tokens` or the context was reached."""


class Phase(Enum):
    """The life of a replica."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Usage(Struct, frozen=True, kw_only=True):
    """What a request took on one stage."""

    input_tokens: int = 0
    output_tokens: int = 0
    queue_us: int = 0
    """Waiting for a place in the engine, in microseconds."""
    run_us: int = 0
    """In the engine, in microseconds."""
    first_output_us: int = 0
    """From the place in the engine to the first output, in microseconds."""


class Outlet(Struct, frozen=True, kw_only=True):
    """Outputs of a request that one consumer will come for by itself, chunk by chunk."""

    token: StreamToken
    """What the consumer shows."""
    outputs: tuple[OutputName, ...]
    """What it gets; nothing else."""
    first_frames: int = 1
    """Frames (rows of the first dimension) in the first chunk."""
    frames: int = 1
    """Frames in every later chunk; the last one may be shorter. 1 and 1: each piece as it is
    made. Text is never gathered."""


class Inlet(Struct, frozen=True, kw_only=True):
    """A producer from which the replica fetches inputs by itself, chunk by chunk."""

    token: StreamToken
    address: str
    """`HOST:PORT` of the producer's service."""
    incarnation: Incarnation
    """Life of the producer that serves the request; another one knows nothing of it."""
    outputs: tuple[OutputName, ...]
    """What comes from there."""


class Open(Struct, frozen=True, kw_only=True):
    """opener to replica: a request begins."""

    request: RequestNumber
    request_id: RequestId
    deadline: Deadline
    credit: int
    """Data frames the replica may send before the first Credit."""
    delivery: Delivery
    inputs: tuple[Output, ...]
    parameters: Parameters
    inlets: tuple[Inlet, ...] = ()
    outlets: tuple[Outlet, ...] = ()
    withheld: tuple[OutputName, ...] = ()
    """Outputs that the opener itself does not want."""
    credit_releases: bool = False
    """Whether the opener has done with the tensors of the frames that it grants Credit for."""


class Subscribe(Struct, frozen=True, kw_only=True):
    """opener to replica: wants what an outlet of another opener's request holds.

    Answered like a request of its own: Data, then End or Error. May come before the request does;
    it then waits. A Credit says that the tensors of as many frames are done with.
    """

    request: RequestNumber
    token: StreamToken
    deadline: Deadline
    credit: int
    incarnation: Incarnation
    """Life of the replica that the request was given to."""


class Data(Struct, frozen=True, kw_only=True):
    """replica to opener: outputs."""

    request: RequestNumber
    sequence: int
    """Counts the Data frames of this request from 0 without gaps."""
    outputs: tuple[Output, ...]

    @property
    def holds_tensors(self) -> bool:
        """Whether an output refers to a tensor that the replica must keep until Release."""
        return any(isinstance(output.payload.content, TensorRef) for output in self.outputs)


class Credit(Struct, frozen=True, kw_only=True):
    """opener to replica: that many more Data frames may be sent."""

    request: RequestNumber
    frames: int


class Cancel(Struct, frozen=True, kw_only=True):
    """opener to replica: the request is not wanted any more. Final: nothing answers it."""

    request: RequestNumber
    reason: str


class End(Struct, frozen=True, kw_only=True):
    """replica to opener: the request ended well."""

    request: RequestNumber
    finish_reason: FinishReason
    usage: Usage
    data_frames: int
    """Data frames sent before this."""


class Error(Struct, frozen=True, kw_only=True):
    """replica to opener: the request ended badly; nothing of it is held."""

    request: RequestNumber
    error: OmnistageError


class Release(Struct, frozen=True, kw_only=True):
    """opener to replica: the tensors of this ended request are not needed any more."""

    request: RequestNumber


class Progress(Struct, frozen=True, kw_only=True):
    """replica to opener: how far the request is. Needs no credit; the latest one counts."""

    request: RequestNumber
    done: int
    """Steps done."""
    total: int
    """Steps in all."""


class Status(Struct, frozen=True, kw_only=True):
    """replica to opener, about the replica itself; the first frame on every link."""

    phase: Phase
    message: str
    incarnation: Incarnation
    host: HostId


FromOpener = Open | Subscribe | Credit | Cancel | Release
FromReplica = Data | Progress | End | Error | Status
Frame = FromOpener | FromReplica
