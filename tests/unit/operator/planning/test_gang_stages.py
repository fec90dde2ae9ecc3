"""A stage whose replicas span nodes: a gang of pods is one replica, and its leader stands for it."""

import dataclasses
from typing import Any

import pytest

from fakes.stage_cluster import SETTINGS, STAGE, Namespace, Object, pod, running, stage_object
from omnistage_operator.planning.settings import OperatorSettings

SPREAD = {"tensor": 4, "nodes": 2}
WITH_GANGS = dataclasses.replace(SETTINGS, leader_worker_sets=True)


def gang_stage(settings: OperatorSettings = WITH_GANGS, **spec: Any) -> Namespace:
    """A stage on two nodes, with its children."""
    namespace = Namespace(stage_object(parallelism=SPREAD, **spec), settings=settings)
    namespace.settle()
    return namespace


def member(one: Object, role: str) -> Object:
    """A pod as part of a gang."""
    labels = {**one["metadata"]["labels"], "omnistage.io/gang": role}
    return {**one, "metadata": {**one["metadata"], "labels": labels}}


def test_its_workload_is_a_leader_worker_set_of_as_many_gangs_as_replicas() -> None:
    namespace = gang_stage(replicas=3)

    (workload,) = namespace.of_kind("LeaderWorkerSet")
    assert namespace.of_kind("Deployment") == []
    assert workload["spec"]["replicas"] == 3
    assert workload["spec"]["leaderWorkerTemplate"]["size"] == 2


def test_scaling_changes_the_number_of_gangs_and_nothing_else() -> None:
    namespace = gang_stage(replicas=2)
    (before,) = namespace.of_kind("LeaderWorkerSet")

    namespace.change(replicas=5)
    namespace.settle()

    (after,) = namespace.of_kind("LeaderWorkerSet")
    assert after["spec"] == {**before["spec"], "replicas": 5}


def test_gateways_and_autoscalers_find_leaders_only() -> None:
    namespace = gang_stage()

    (service,) = namespace.of_kind("Service")
    assert service["spec"]["selector"]["omnistage.io/gang"] == "leader"
    assert namespace.status["selector"].endswith(",omnistage.io/gang notin (follower)")


def test_a_replica_is_as_ready_as_its_leader() -> None:
    namespace = gang_stage(replicas=2)
    pods = [running(namespace.revision, f"gang-{name}") for name in ("0", "0-1", "1", "1-1")]
    roles = ["leader", "follower"] * 2
    namespace.pods = [member(one, role) for one, role in zip(pods, roles, strict=True)]

    namespace.settle()

    assert (namespace.status["replicas"], namespace.status["readyReplicas"]) == (2, 2)
    assert namespace.status["reason"] == "Ready"
    (revision,) = namespace.status["revisions"]
    assert (revision["desired"], revision["ready"], revision["updated"]) == (2, 2, 2)


def test_a_follower_says_why_its_gang_is_not_ready() -> None:
    namespace = gang_stage()
    unplaced = pod(
        namespace.revision,
        "gang-0-1",
        node=None,
        conditions={
            "PodScheduled": {
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            }
        },
    )
    leader = running(namespace.revision, "gang-0", ready=False)
    namespace.pods = [member(leader, "leader"), member(unplaced, "follower")]

    namespace.settle()

    assert namespace.status["reason"] == "InsufficientCapacity"
    assert namespace.status["message"].startswith("0 of 1 replica ready; gang-0-1: ")


def test_its_pods_may_reach_each_other() -> None:
    def sources(namespace: Namespace) -> list[Object]:
        (policy,) = namespace.of_kind("NetworkPolicy")
        found: list[Object] = policy["spec"]["ingress"][0]["from"]
        return found

    alone = Namespace(stage_object())
    alone.settle()
    members = {"podSelector": {"matchLabels": {"omnistage.io/stage": STAGE}}}

    assert sources(gang_stage()) == [*sources(alone), members]


def test_an_earlier_image_is_kept_as_in_a_deployment() -> None:
    namespace = gang_stage()
    namespace.pods = [member(running(namespace.revision, "gang-0"), "leader")]
    namespace.settings = dataclasses.replace(WITH_GANGS, stage_image="example.org/next:1")

    namespace.settle()

    (workload,) = namespace.of_kind("LeaderWorkerSet")
    for name in ("leaderTemplate", "workerTemplate"):
        (container,) = workload["spec"]["leaderWorkerTemplate"][name]["spec"]["containers"]
        assert container["image"] == SETTINGS.stage_image


def test_a_stage_that_comes_back_to_one_node_has_a_deployment_beside_until_no_plan_needs_it() -> (
    None
):
    namespace = gang_stage()
    old = namespace.revision
    namespace.plans = frozenset({(STAGE, old)})
    namespace.change(parallelism=None)
    namespace.settle()
    assert namespace.of_kind("LeaderWorkerSet")
    assert namespace.of_kind("Deployment")

    namespace.plans = frozenset({(STAGE, namespace.revision)})
    namespace.settle()

    assert not namespace.of_kind("LeaderWorkerSet")


@pytest.mark.parametrize("later", [False, True], ids=["from the start", "later"])
def test_without_leader_worker_sets_the_stage_says_so_and_what_serves_serves_on(
    later: bool,  # noqa: FBT001 - a case of the table
) -> None:
    if later:
        namespace = Namespace(stage_object())
        namespace.settle()
        namespace.change(parallelism=SPREAD)
        namespace.settle()
        assert namespace.of_kind("Deployment")
    else:
        namespace = gang_stage(SETTINGS)
        assert not namespace.children

    assert namespace.status["reason"] == "LeaderWorkerSetMissing"
    own, *others = namespace.status["revisions"]
    assert (own["revision"], own["ready"]) == (namespace.revision, 0)
    assert len(others) == later
    assert "parallelism.nodes" in namespace.status["message"]
