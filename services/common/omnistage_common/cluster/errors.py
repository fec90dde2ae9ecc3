"""What the API server can answer instead of what was asked, as a branch of the one error tree.

    OmnistageError
    └── ApiError                 the API server did not do it
        ├── ObjectNotFound       404: a state of the world, seldom a fault
        ├── WriteConflict        409: somebody else wrote first, or owns the field; read again
        │   └── AlreadyExists    409: a create found its name taken
        ├── HistoryGone          410: the watch or page is too old; list again
        ├── ObjectInvalid        400, 422: the same write can never succeed
        ├── AccessDenied         401, 403: credentials or RBAC
        ├── ApiBusy              429: wait as long as the server says
        ├── ApiUnavailable       5xx, connection lost, no answer in time
        └── WriteFenced          not sent: this process does not lead

The class is the decision: what to read again, what to wait for, what to give up. Nothing above the
transport looks at a status code.
"""

from omnistage_common.errors import OmnistageError

__all__ = [
    "AccessDenied",
    "AlreadyExists",
    "ApiBusy",
    "ApiError",
    "ApiUnavailable",
    "HistoryGone",
    "ObjectInvalid",
    "ObjectNotFound",
    "WriteConflict",
    "WriteFenced",
]


class ApiError(OmnistageError):
    """The API server did not do what it was asked."""

    code = "api_error"


class ObjectNotFound(ApiError):
    """There is no such object, or its kind is not installed."""

    code = "object_not_found"


class WriteConflict(ApiError):
    """Another writer was first, or owns a field that this write sets without force."""

    code = "write_conflict"


class AlreadyExists(WriteConflict):
    """A create found that the name is taken."""

    code = "already_exists"


class HistoryGone(ApiError):
    """The server no longer holds the history from which a watch or a page was to go on."""

    code = "history_gone"


class ObjectInvalid(ApiError):
    """The server refused the object; the same object is refused again."""

    code = "object_invalid"


class AccessDenied(ApiError):
    """The server does not know these credentials, or they do not allow this."""

    code = "access_denied"


class ApiBusy(ApiError):
    """The server sheds load; `retry_after` says for how long."""

    code = "api_busy"


class ApiUnavailable(ApiError):
    """The server failed, cannot be reached, or did not answer in time."""

    code = "api_unavailable"


class WriteFenced(ApiError):
    """Nothing was sent: this process does not hold the lease that lets it write."""

    code = "write_fenced"
