"""The time as a cluster writes it: whole seconds, UTC."""

from datetime import UTC, datetime

__all__ = ["now"]


def now() -> str:
    """This moment, e.g. `2026-12-01T12:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
