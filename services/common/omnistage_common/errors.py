"""Everything that can go wrong, as one tree with one table.

    OmnistageError
    ├── RequestError                the client can mend it
    │   ├── InvalidRequest          names the field at fault
    │   │   └── UnsupportedModality
    │   ├── ModelNotFound
    │   ├── BodyTooLarge
    │   └── RequestCancelled        the client went away
    ├── UnavailableError            try again later, perhaps elsewhere
    │   ├── TooManyRequests         a bound was reached
    │   ├── StageUnavailable        no replica of a stage can serve
    │   └── Draining                this replica is going out of service
    ├── DeadlineExceeded            the request's one deadline passed
    ├── ServerError                 our fault
    │   ├── EngineFailed            the engine raised while it computed
    │   ├── MissingOutput           a stage ended without an output it owes
    │   ├── TensorLost              a tensor's lease or producer is gone
    │   └── ProtocolViolation       the peer broke the frame protocol
    └── SetupError                  nothing was started
        ├── InvalidPipeline         problems in resources or plan
        ├── InvalidWeights          model files missing or broken
        └── MissingDependency       an extra is not installed

A base class stands for each decision a caller can take: mend the request, try again, give up,
repair the installation. `STATUS` maps each class to its gRPC status, HTTP status, OpenAI error type
and condition reason; `code` travels in Error frames and comes back as the same class.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

__all__ = [
    "MAX_FOREIGN_TEXT",
    "STATUS",
    "BodyTooLarge",
    "DeadlineExceeded",
    "Draining",
    "EngineFailed",
    "InvalidPipeline",
    "InvalidRequest",
    "InvalidWeights",
    "MissingDependency",
    "MissingOutput",
    "ModelNotFound",
    "OmnistageError",
    "ProtocolViolation",
    "RequestCancelled",
    "RequestError",
    "ServerError",
    "SetupError",
    "StageUnavailable",
    "Status",
    "TensorLost",
    "TooManyRequests",
    "UnavailableError",
    "UnsupportedModality",
    "error_from_code",
    "status_of",
    "truncated",
]

MAX_FOREIGN_TEXT: Final = 512
"""Characters of somebody else's text that may appear in a message of ours."""


def truncated(text: str) -> str:
    """Foreign text, shortened to `MAX_FOREIGN_TEXT` characters."""
    return text if len(text) <= MAX_FOREIGN_TEXT else text[: MAX_FOREIGN_TEXT - 1] + "…"


class OmnistageError(Exception):
    """Root of the tree.

    Attributes:
        message: For people; says what to do.
        field: Request or resource field at fault, empty when none is.
        retry_after: Seconds after which it makes sense to try again, None when it does not.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after


class RequestError(OmnistageError):
    """The client can mend it."""

    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field of the request is missing, of the wrong type or out of range."""

    code = "invalid_request"


class UnsupportedModality(InvalidRequest):
    """The pipeline cannot take or make this modality."""

    code = "unsupported_modality"


class ModelNotFound(RequestError):
    """No pipeline serves this model name."""

    code = "model_not_found"


class BodyTooLarge(RequestError):
    """The body is over the limit; it was not read into memory."""

    code = "body_too_large"


class RequestCancelled(RequestError):
    """The client went away or cancelled."""

    code = "cancelled"


class UnavailableError(OmnistageError):
    """Nothing was computed; the same request may succeed later."""

    code = "unavailable"

    def __init__(self, message: str, *, field: str = "", retry_after: float | None = 1.0) -> None:
        super().__init__(message, field=field, retry_after=retry_after)


class TooManyRequests(UnavailableError):
    """A bound on concurrent work was reached."""

    code = "too_many_requests"


class StageUnavailable(UnavailableError):
    """No replica of a stage can serve, or the one that did is lost."""

    code = "stage_unavailable"


class Draining(UnavailableError):
    """This replica takes no new requests."""

    code = "draining"


class DeadlineExceeded(OmnistageError):
    """The request's deadline passed; every stage has dropped it."""

    code = "deadline_exceeded"


class ServerError(OmnistageError):
    """Our fault; the request cannot be mended by its sender."""

    code = "internal"


class EngineFailed(ServerError):
    """The engine raised while it computed."""

    code = "engine_failed"


class MissingOutput(ServerError):
    """A stage ended without an output it owes."""

    code = "missing_output"


class TensorLost(ServerError):
    """A tensor's lease ended, its producer is gone, or its bytes are not what was published."""

    code = "tensor_lost"


class ProtocolViolation(ServerError):
    """The peer broke the frame protocol."""

    code = "protocol_violation"


class SetupError(OmnistageError):
    """Nothing was started."""

    code = "setup"


class InvalidPipeline(SetupError):
    """Resources or plan have problems; each is named in the message."""

    code = "invalid_pipeline"


class InvalidWeights(SetupError):
    """Model files are missing or broken."""

    code = "invalid_weights"


class MissingDependency(SetupError):
    """A package is not installed; the message names the extra that brings it."""

    code = "missing_dependency"


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """How an error class shows at each door."""

    grpc: str
    """Name of the gRPC status code."""
    http: int
    """HTTP status."""
    openai_type: str
    """`error.type` in the OpenAI shape."""
    reason: str
    """Reason of a Kubernetes condition."""


def _row(grpc: str, http: int, openai_type: str, reason: str) -> Status:
    return Status(grpc=grpc, http=http, openai_type=openai_type, reason=reason)


STATUS: Final[dict[type[OmnistageError], Status]] = {
    InvalidRequest: _row("INVALID_ARGUMENT", 400, "invalid_request_error", "InvalidRequest"),
    UnsupportedModality: _row(
        "INVALID_ARGUMENT", 400, "invalid_request_error", "UnsupportedModality"
    ),
    RequestError: _row("INVALID_ARGUMENT", 400, "invalid_request_error", "InvalidRequest"),
    ModelNotFound: _row("NOT_FOUND", 404, "invalid_request_error", "ModelNotFound"),
    BodyTooLarge: _row("OUT_OF_RANGE", 413, "invalid_request_error", "BodyTooLarge"),
    RequestCancelled: _row("CANCELLED", 499, "invalid_request_error", "Cancelled"),
    TooManyRequests: _row("RESOURCE_EXHAUSTED", 429, "rate_limit_error", "TooManyRequests"),
    StageUnavailable: _row("UNAVAILABLE", 503, "service_unavailable", "StageUnavailable"),
    Draining: _row("UNAVAILABLE", 503, "service_unavailable", "Draining"),
    UnavailableError: _row("UNAVAILABLE", 503, "service_unavailable", "Unavailable"),
    DeadlineExceeded: _row("DEADLINE_EXCEEDED", 504, "timeout_error", "DeadlineExceeded"),
    EngineFailed: _row("INTERNAL", 500, "server_error", "EngineFailed"),
    MissingOutput: _row("INTERNAL", 500, "server_error", "MissingOutput"),
    TensorLost: _row("DATA_LOSS", 500, "server_error", "TensorLost"),
    ProtocolViolation: _row("INTERNAL", 502, "server_error", "ProtocolViolation"),
    ServerError: _row("INTERNAL", 500, "server_error", "InternalError"),
    InvalidPipeline: _row("FAILED_PRECONDITION", 500, "server_error", "GraphInvalid"),
    InvalidWeights: _row("FAILED_PRECONDITION", 500, "server_error", "WeightsInvalid"),
    MissingDependency: _row("FAILED_PRECONDITION", 500, "server_error", "MissingDependency"),
    SetupError: _row("FAILED_PRECONDITION", 500, "server_error", "SetupFailed"),
    OmnistageError: _row("UNKNOWN", 500, "server_error", "InternalError"),
}
"""The one table. `tests/unit/common/test_errors.py` holds a row for every class of the tree."""

_BY_CODE: Final[dict[str, type[OmnistageError]]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        UnsupportedModality,
        ModelNotFound,
        BodyTooLarge,
        RequestCancelled,
        TooManyRequests,
        StageUnavailable,
        Draining,
        UnavailableError,
        DeadlineExceeded,
        EngineFailed,
        MissingOutput,
        TensorLost,
        ProtocolViolation,
        ServerError,
        InvalidPipeline,
        InvalidWeights,
        MissingDependency,
        SetupError,
    )
}


def status_of(error: OmnistageError) -> Status:
    """The row of an error's class, or of its nearest ancestor that has one."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return STATUS[OmnistageError]


def error_from_code(
    code: str, message: str, *, field: str = "", retry_after: float | None = None
) -> OmnistageError:
    """The error that an Error frame stands for; an unknown code becomes a `ServerError`."""
    return _BY_CODE.get(code, ServerError)(message, field=field, retry_after=retry_after)
