"""What is worth an event."""

from typing import Any

from omnistage_operator.planning.announcing import announcements


def status(ready: str, reason: str, *, current: str = "", message: str = "") -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "reason": reason, "message": message}
    return {"conditions": [condition], **({"currentRevision": current} if current else {})}


def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(each.reason, each.warning) for each in announcements(before, after)]


def test_becoming_ready_is_told_once() -> None:
    waiting, ready = status("False", "Progressing"), status("True", "Ready")

    assert told(waiting, ready) == [("Ready", False)]
    assert told(ready, ready) == []


def test_a_reason_that_somebody_should_look_at_is_a_warning_with_its_words() -> None:
    crashing = status("False", "CrashLoop", message="stage thinker: exit status 1")

    (warning,) = announcements(status("False", "Progressing"), crashing)

    assert (warning.reason, warning.warning) == ("CrashLoop", True)
    assert warning.note == "stage thinker: exit status 1"
    assert told(crashing, crashing) == []


def test_waiting_is_no_event() -> None:
    assert told({}, status("False", "Progressing")) == []
    assert told(status("True", "Ready"), status("False", "ModelLoading")) == []


def test_a_revision_that_takes_over_is_told() -> None:
    before, after = status("True", "Ready", current="a"), status("True", "Ready", current="b")

    (told_of,) = announcements(before, after)

    assert told_of.reason == "RevisionServing"
    assert "b" in told_of.note
