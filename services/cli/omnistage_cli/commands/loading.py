"""How far stages are that load their models: the newest words of their pods' logs.

A status tells nothing that changes by itself, or pipelines that load would be written all the time. So
who wants to know how far a model is looks at the log, with rights of their own.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from omnistage_common.cluster.errors import ApiError
from omnistage_common.cluster.kinds import PODS, ResourceKind
from omnistage_common.cluster.manifests import Manifest, ObjectKey, key_of
from omnistage_common.cluster.messages import Selection
from omnistage_common.ids import StageName
from omnistage_common.pipeline.published import STAGE_LABEL
from omnistage_common.pipeline.resources.status import PipelineStageStatus, StageReason

__all__ = ["Logs", "last_words"]

_CONTAINER: Final = "stage"
_LINES: Final = 20
"""The last of them may be a library's and say nothing."""


class Logs(Protocol):
    """What is needed of an API server."""

    async def list_all(
        self, kind: ResourceKind, selection: Selection | None = None
    ) -> list[Manifest]:
        """Reads all objects of a selection."""

    async def log_tail(self, pod: ObjectKey, container: str, *, lines: int) -> str:
        """Reads the end of a log."""


class _Line(Struct, frozen=True):
    """A line of a stage's log, as far as it is shown."""

    event: str
    step: str = ""


async def last_words(
    logs: Logs, namespace: str, stages: Iterable[PipelineStageStatus]
) -> dict[StageName, str]:
    """What each stage that loads its model has said last, by the name of the stage.

    Args:
        logs: The way to the API server.
        namespace: Of the pipeline.
        stages: All of its stages; those that do not load are left out.
    """
    found = {}
    for stage in stages:
        if stage.reason == StageReason.MODEL_LOADING.value and stage.stage is not None:
            words = await _words_of(logs, namespace, stage)
            if words:
                found[StageName(stage.name)] = words
    return found


async def _words_of(logs: Logs, namespace: str, stage: PipelineStageStatus) -> str:
    """Those of one of its pods that is not ready; why they cannot be read, where they cannot."""
    chosen = f"{STAGE_LABEL}={stage.stage},omnistage.io/revision={stage.revision}"
    try:
        pods = await logs.list_all(PODS, Selection(namespace=namespace, labels=chosen))
        loading = next((pod for pod in pods if not _is_ready(pod)), None)
        if loading is None:
            return ""
        tail = await logs.log_tail(key_of(loading), _CONTAINER, lines=_LINES)
    except ApiError as error:
        return f"its log cannot be read: {error.message}"
    name = loading["metadata"]["name"]
    words = next(filter(None, map(_shown, reversed(tail.splitlines()))), "nothing yet")
    return f"the log of {name}: {words}"


def _shown(line: str) -> str:
    """A line of ours as a sentence; another's not at all."""
    try:
        said = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError:
        return ""
    return f"{said.event}: {said.step}" if said.step else said.event


def _is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
