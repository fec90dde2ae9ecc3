"""What the API server's refusals mean, in the one place that looks at status codes."""

import json
from collections.abc import Mapping
from typing import Any, Final

from omnistage_common.cluster.errors import (
    AccessDenied,
    AlreadyExists,
    ApiBusy,
    ApiError,
    ApiUnavailable,
    HistoryGone,
    ObjectInvalid,
    ObjectNotFound,
    WriteConflict,
)
from omnistage_common.errors import truncated

__all__ = ["refusal", "retry_after_of"]

_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: ObjectInvalid,
    401: AccessDenied,
    403: AccessDenied,
    404: ObjectNotFound,
    409: WriteConflict,
    410: HistoryGone,
    413: ObjectInvalid,
    415: ObjectInvalid,
    422: ObjectInvalid,
    429: ApiBusy,
}

_REMEDIES: Final[Mapping[int, str]] = {
    401: "the credentials are unknown to it: check the service account or the kubeconfig",
    403: "RBAC does not allow this: compare the roles of the chart with those in the cluster",
}

_LONGEST_WAIT_S: Final = 60.0
"""A server that asks for more is asked again before that."""


def refusal(
    asked: str, status: int, body: bytes, headers: Mapping[str, str] | None = None
) -> ApiError:
    """The error that an answer stands for.

    Args:
        asked: What was asked, e.g. `get pods default/web`.
        status: Of HTTP, or the code within a watch's error event.
        body: A `Status` object, or whatever a proxy in between wrote.
        headers: Of the answer.
    """
    said = _status_object(body)
    text = truncated(str(said.get("message") or body.decode(errors="replace") or f"HTTP {status}"))
    remedy = f" ({_REMEDIES[status]})" if status in _REMEDIES else ""
    kind = _BY_STATUS.get(status, ApiUnavailable)
    if kind is WriteConflict and said.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    return kind(
        f"{asked}: {text}{remedy}",
        field=_field(said),
        retry_after=retry_after_of(headers or {}) if status >= 429 else None,  # noqa: PLR2004
    )


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, None when it does not say; dates are not used here."""
    text = headers.get("Retry-After", "")
    return min(float(text), _LONGEST_WAIT_S) if text.isdigit() else None


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _field(said: dict[str, Any]) -> str:
    """The first field that the server finds fault with."""
    details = said.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes or ():
        if cause.get("field"):
            return str(cause["field"])
    return ""
