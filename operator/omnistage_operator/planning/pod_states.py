"""Why one pod does not serve: a word and a sentence, told from what scheduler and kubelet wrote.

Each place that a pod can be stuck at is one function here, from the scheduler to the engine's probe.
Nothing counts or tells the time of day: what is said changes only when something else is the matter.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Final

from msgspec import Struct

from omnistage_common.errors import truncated
from omnistage_common.pipeline.resources.status import StageReason
from omnistage_operator.planning.decisions import Json
from omnistage_operator.planning.endings import ending
from omnistage_operator.planning.pods import CONTAINER

__all__ = ["Finding", "is_leaving", "is_lost", "is_ready", "pod_finding"]

_IMAGE: Final = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_NOT_STARTED: Final = frozenset(
    {"CreateContainerError", "PostStartHookError", "RunContainerError", "StartError"}
)
_MOUNTING: Final = frozenset({"FailedAttachVolume", "FailedMapVolume", "FailedMount"})
_PREPARING: Final = frozenset({"FailedCreatePodSandBox", "Pulled", "Pulling"})
_NO_ROOM_ON_NODE: Final = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity")
"""How reasons begin that a kubelet gives for a pod that its node cannot take after all."""
_AGAIN: Final = 2
"""As many ends of a process are a loop."""


class Finding(Struct, frozen=True, kw_only=True):
    """What is the matter."""

    reason: StageReason
    message: str


def is_ready(pod: Json) -> bool:
    """Whether its engine has computed something real, and it is to stay."""
    return not is_leaving(pod) and _condition(pod, "Ready").get("status") == "True"


def is_leaving(pod: Json) -> bool:
    """Whether its end has begun."""
    return "deletionTimestamp" in pod["metadata"]


def is_lost(pod: Json) -> bool:
    """Whether it has come to its end and will never run again."""
    return pod.get("status", {}).get("phase") in {"Failed", "Succeeded"}


def pod_finding(pod: Json, events: Sequence[Json]) -> Finding:
    """Why a pod that is neither ready nor leaving does not serve.

    Args:
        pod: As the API has it.
        events: Those about it, the oldest first.
    """
    if is_lost(pod):
        return _lost(pod)
    if not pod.get("spec", {}).get("nodeName"):
        return _unplaced(pod, events)
    container = _container(pod)
    waiting = container.get("state", {}).get("waiting")
    if waiting is not None or not container:
        return _waiting(container, waiting or {}, events)
    return _started(container)


def _lost(pod: Json) -> Finding:
    status = pod["status"]
    word, text = status.get("reason", ""), status.get("message", "")
    message = truncated(text) or word or "the pod has failed"
    if word.startswith(_NO_ROOM_ON_NODE):
        return Finding(reason=StageReason.INSUFFICIENT_CAPACITY, message=message)
    return Finding(reason=StageReason.EVICTED, message=message)


def _unplaced(pod: Json, events: Sequence[Json]) -> Finding:
    """Why it is on no node: the scheduler writes that into a condition, and plug-ins into events."""
    scheduled = _condition(pod, "PodScheduled")
    word, text = scheduled.get("reason"), truncated(scheduled.get("message", ""))
    if word == "Unschedulable":
        return Finding(reason=StageReason.INSUFFICIENT_CAPACITY, message=text)
    if word == "SchedulingGated":
        return Finding(reason=StageReason.PROGRESSING, message=f"waits for a gate: {text}")
    failed = _note(events, {"FailedScheduling"})
    if failed:
        return Finding(reason=StageReason.INSUFFICIENT_CAPACITY, message=failed)
    return Finding(reason=StageReason.PROGRESSING, message="waits for the scheduler")


def _waiting(container: Json, waiting: Mapping[str, str], events: Sequence[Json]) -> Finding:
    """Why its container is not there: image, configuration, volumes, or the last one's end."""
    word, text = waiting.get("reason", ""), truncated(waiting.get("message", ""))
    if word in _IMAGE:
        pulled = _note(events, {"Failed"}, beginning="Failed to pull image")
        return Finding(reason=StageReason.IMAGE_PULL, message=pulled or text or word)
    if word == "CreateContainerConfigError":
        return Finding(reason=StageReason.CONFIG_ERROR, message=text or word)
    if word in _NOT_STARTED:
        return Finding(reason=StageReason.CRASH_LOOP, message=text or word)
    ended = container.get("lastState", {}).get("terminated")
    if ended is not None:
        found = ending(ended)
        return Finding(reason=found.reason, message=found.message)
    return _prepared(events)


def _prepared(events: Sequence[Json]) -> Finding:
    """What is done before there is a container, by the latest event: a mount may fail at first."""
    steps = [each for each in events if each.get("reason") in _MOUNTING | _PREPARING]
    latest = steps[-1] if steps else {}
    unmounted = latest.get("reason") in _MOUNTING
    return Finding(
        reason=StageReason.VOLUME_NOT_MOUNTED if unmounted else StageReason.PROGRESSING,
        message=truncated(latest.get("note", "")) or "its container is made",
    )


def _started(container: Json) -> Finding:
    """Why its process does not serve: it has ended, it starts, or its engine loads."""
    state = container.get("state", {})
    if "terminated" in state:
        found = ending(state["terminated"])
        return Finding(reason=found.reason, message=found.message)
    before = container.get("lastState", {}).get("terminated")
    after = ""
    if before is not None:
        found = ending(before)
        looping = container.get("restartCount", 0) >= _AGAIN
        if looping or found.reason is not StageReason.CRASH_LOOP:
            return Finding(reason=found.reason, message=found.message)
        after = f"; the one before {found.message}"
    if container.get("ready", False):
        return Finding(reason=StageReason.PROGRESSING, message="its node does not answer")
    if not container.get("started", False):
        return Finding(reason=StageReason.PROGRESSING, message=f"its process starts{after}")
    return Finding(reason=StageReason.MODEL_LOADING, message=f"its engine loads the model{after}")


def _container(pod: Json) -> Json:
    found: Sequence[Json] = pod.get("status", {}).get("containerStatuses", ())
    return next((each for each in found if each.get("name") == CONTAINER), {})


def _condition(pod: Json, kind: str) -> Json:
    found: Sequence[Json] = pod.get("status", {}).get("conditions", ())
    return next((each for each in found if each.get("type") == kind), {})


def _note(events: Sequence[Json], reasons: Container[str], *, beginning: str = "") -> str:
    """What the latest event of these reasons says, that begins so; empty when there is none."""
    notes = [
        each.get("note", "")
        for each in events
        if each.get("reason") in reasons and each.get("note", "").startswith(beginning)
    ]
    return truncated(notes[-1]) if notes else ""
