"""What stages that load have said last: of the right pod, in words, and never in the way of the rest."""

from typing import Any

import pytest

from omnistage_cli.commands.loading import last_words
from omnistage_common.cluster.errors import AccessDenied
from omnistage_common.cluster.kinds import PODS, ResourceKind
from omnistage_common.cluster.manifests import Manifest, ObjectKey
from omnistage_common.cluster.messages import Selection
from omnistage_common.ids import StageName
from omnistage_common.pipeline.resources.status import PipelineStageStatus

TALKER = StageName("talker")
LIBRARY = "Loading checkpoint shards:  50%|#####     | 2/4"
OURS = '{"event": "listening", "address": "10.0.0.1:7001", "level": "info"}'
STEP = '{"event": "preparing weights", "step": "fetching org/model@main", "level": "info"}'


def stage(reason: str, name: str = "talker") -> PipelineStageStatus:
    """A stage as a pipeline's status has it."""
    fields = {"name": name, "stage": f"chat-{name}", "revision": "b2", "reason": reason}
    return PipelineStageStatus.model_validate(fields)


def pod(name: str, *, ready: bool) -> Manifest:
    """A pod."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "status": {"conditions": [condition]},
    }


class Cluster:
    """Pods and their logs."""

    def __init__(self, logs: dict[str, str], *, ready: tuple[str, ...] = ()) -> None:
        self._logs = logs
        self._ready = ready
        self.asked: list[Any] = []

    async def list_all(
        self, kind: ResourceKind, selection: Selection | None = None
    ) -> list[Manifest]:
        """All pods there are."""
        assert kind is PODS
        self.asked.append(selection)
        return [pod(name, ready=name in self._ready) for name in self._logs]

    async def log_tail(self, pod: ObjectKey, container: str, *, lines: int) -> str:
        """The end of a log."""
        self.asked.append((pod, container))
        return "\n".join(self._logs[pod.name].splitlines()[-lines:])


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (OURS, "listening"),
        (f"{OURS}\n{STEP}", "preparing weights: fetching org/model@main"),
        (f"{STEP}\n{LIBRARY}\n", "preparing weights: fetching org/model@main"),
        (LIBRARY, "nothing yet"),
        ("", "nothing yet"),
    ],
)
async def test_the_last_line_of_ours_is_told_as_words(log: str, words: str) -> None:
    cluster = Cluster({"talker-0": log})

    assert await last_words(cluster, "team", [stage("ModelLoading")]) == {
        TALKER: f"the log of talker-0: {words}"
    }


async def test_the_log_is_that_of_a_pod_of_the_revision_that_is_not_ready() -> None:
    cluster = Cluster({"talker-0": STEP, "talker-1": OURS}, ready=("talker-0",))

    await last_words(cluster, "team", [stage("ModelLoading")])

    selection, (asked, container) = cluster.asked
    assert selection.namespace == "team"
    assert selection.labels == "omnistage.io/stage=chat-talker,omnistage.io/revision=b2"
    assert (asked, container) == (ObjectKey("team", "talker-1"), "stage")


async def test_who_does_not_load_is_not_asked_about() -> None:
    cluster = Cluster({"talker-0": OURS})

    assert await last_words(cluster, "team", [stage("Ready"), stage("ImagePull", "thinker")]) == {}
    assert cluster.asked == []


async def test_a_pod_that_became_ready_meanwhile_has_nothing_to_say() -> None:
    cluster = Cluster({"talker-0": OURS}, ready=("talker-0",))

    assert await last_words(cluster, "team", [stage("ModelLoading")]) == {}


async def test_a_log_that_may_not_be_read_is_said_and_is_no_failure() -> None:
    class Closed(Cluster):
        async def log_tail(self, pod: ObjectKey, container: str, *, lines: int) -> str:
            raise AccessDenied(f"get pods/log {pod}: forbidden for {container}, {lines}")

    words = await last_words(Closed({"talker-0": OURS}), "team", [stage("ModelLoading")])

    assert words[TALKER].startswith("its log cannot be read: get pods/log team/talker-0")
