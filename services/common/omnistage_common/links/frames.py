"""Frames: the steps in the life of one request on a link, as values."""

from enum import Enum

from msgspec import Struct

from omnistage_common.deadlines import Deadline
from omnistage_common.errors import OmnistageError
from omnistage_common.ids import HostId, Incarnation, RequestId, RequestNumber
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
    "Open",
    "Phase",
    "Release",
    "Status",
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


class Status(Struct, frozen=True, kw_only=True):
    """replica to opener, about the replica itself; the first frame on every link."""

    phase: Phase
    message: str
    incarnation: Incarnation
    host: HostId


FromOpener = Open | Credit | Cancel | Release
FromReplica = Data | End | Error | Status
Frame = FromOpener | FromReplica
