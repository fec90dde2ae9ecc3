"""Events about what happened to an object, as its status tells it."""

from collections.abc import Mapping
from typing import Any

from omnistage_common.cluster.manifests import Manifest
from omnistage_operator.cluster.recording import EventType, Recorder
from omnistage_operator.planning.announcing import announcements

__all__ = ["announce"]


def announce(recorder: Recorder, before: Manifest, status: Mapping[str, Any]) -> None:
    """Records what is new in a status that was written.

    Args:
        recorder: Writes the events.
        before: The object with the status that it had.
        status: What was written.
    """
    for each in announcements(before.get("status") or {}, status):
        recorder.record(
            before,
            kind=EventType.WARNING if each.warning else EventType.NORMAL,
            reason=each.reason,
            action=each.action,
            note=each.note,
        )
