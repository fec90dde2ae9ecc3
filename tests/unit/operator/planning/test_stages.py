"""Which children a stage has and loses, from its first sight to its deletion, and what is said of it."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.stage_cluster import (
    NOW,
    SETTINGS,
    STAGE,
    Namespace,
    Object,
    plan_naming,
    pod,
    running,
    runtime_object,
    stage_object,
    waiting,
)
from omnistage_common.ids import Revision
from omnistage_common.pipeline.resources.status import StageStatus
from omnistage_operator.planning.decisions import Decision
from omnistage_operator.planning.stages import plan_references, runtime_needed

LATER = "2026-12-01T09:00:00Z"
OTHER_ARGS = {"outputs": {"text": {"text": " other"}}}


def ready_stage(**spec: Any) -> Namespace:
    """A stage whose one replica serves."""
    namespace = Namespace(stage_object(**spec))
    namespace.settle()
    namespace.pods = [running(namespace.revision)]
    namespace.settle()
    return namespace


def condition(namespace: Namespace, kind: str) -> Object:
    """A condition that was written last."""
    found: Object = next(each for each in namespace.status["conditions"] if each["type"] == kind)
    return found


def template_of(namespace: Namespace) -> Object:
    """What the pods of the spec's revision are made from."""
    found: Object = namespace.deployment()["spec"]["template"]
    return found


def test_a_new_stage_gets_its_children_what_is_needed_first() -> None:
    decision = Namespace(stage_object()).plan()

    assert [each["kind"] for each in decision.apply] == [
        "ServiceAccount",
        "NetworkPolicy",
        "ConfigMap",
        "Service",
        "Deployment",
    ]
    assert decision.delete == ()


@pytest.mark.parametrize(
    "several", [{"replicas": 2}, {"autoscaling": {"maxReplicas": 2}}], ids=["fixed", "scaled"]
)
def test_a_budget_is_there_while_there_may_be_replicas_to_spread_evictions_over(
    several: dict[str, Any],
) -> None:
    namespace = Namespace(stage_object())
    namespace.settle()
    assert not namespace.of_kind("PodDisruptionBudget")

    namespace.change(**several)
    namespace.settle()
    (budget,) = namespace.of_kind("PodDisruptionBudget")
    namespace.change(replicas=1, autoscaling=None)
    namespace.settle()

    assert budget["spec"]["maxUnavailable"] == 1
    assert not namespace.of_kind("PodDisruptionBudget")


def test_every_child_goes_with_its_stage() -> None:
    namespace = Namespace(stage_object(autoscaling={"maxReplicas": 2}))

    for child in namespace.plan().apply:
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (f"uid-of-{STAGE}", True)
        assert child["metadata"]["namespace"] == namespace.stage["metadata"]["namespace"]


def test_a_stage_that_is_being_deleted_is_left_alone() -> None:
    namespace = ready_stage()
    namespace.stage["metadata"]["deletionTimestamp"] = NOW

    assert namespace.plan() == Decision()


def test_scaling_changes_the_number_of_replicas_and_nothing_else() -> None:
    namespace = ready_stage()
    namespace.change(replicas=2)
    before = namespace.plan().apply
    namespace.change(replicas=4)
    after = namespace.plan()

    differing = [(old, new) for old, new in zip(before, after.apply, strict=True) if old != new]
    ((old, new),) = differing
    assert new["kind"] == "Deployment"
    assert new["spec"].pop("replicas") == 4
    assert old["spec"].pop("replicas") == 2
    assert old == new
    assert after.delete == ()


def test_a_stage_without_a_number_has_one_replica() -> None:
    namespace = Namespace(stage_object(replicas=None))
    namespace.settle()

    assert namespace.deployment()["spec"]["replicas"] == 1


def test_what_an_autoscaler_wrote_is_no_mistake() -> None:
    namespace = Namespace(stage_object(replicas=7, autoscaling={"maxReplicas": 8}))
    namespace.settle()

    assert namespace.deployment()["spec"]["replicas"] == 7
    assert namespace.status["reason"] == "Progressing"


def test_an_autoscaler_that_is_not_wanted_any_more_goes() -> None:
    namespace = Namespace(stage_object(autoscaling={"maxReplicas": 2}))
    namespace.settle()
    assert namespace.of_kind("HorizontalPodAutoscaler")

    namespace.change(autoscaling=None)
    namespace.settle()

    assert not namespace.of_kind("HorizontalPodAutoscaler")


def test_other_arguments_stand_beside_the_old_ones_until_no_plan_names_these() -> None:
    namespace = ready_stage()
    old = namespace.revision
    namespace.plans = frozenset({(STAGE, old)})
    namespace.change(engineArgs=OTHER_ARGS)
    namespace.settle()
    new = namespace.revision

    assert namespace.revisions() == {old, new}
    assert {each["metadata"]["name"] for each in namespace.of_kind("Service")} == {
        f"{STAGE}-{old}",
        f"{STAGE}-{new}",
    }

    namespace.plans = frozenset({(STAGE, new)})
    gone = namespace.settle().delete

    assert {each.kind for each in gone} == {"ConfigMap", "Deployment", "Service"}
    assert namespace.revisions() == {new}


def test_a_plan_of_another_stage_keeps_nothing_alive() -> None:
    namespace = ready_stage()
    old = namespace.revision
    namespace.plans = frozenset({("other", old)})
    namespace.change(engineArgs=OTHER_ARGS)
    namespace.settle()

    assert old not in namespace.revisions()


def test_an_old_revision_is_left_exactly_as_it_is() -> None:
    namespace = ready_stage()
    old = namespace.revision
    namespace.plans = frozenset({(STAGE, old)})
    namespace.deployment()["spec"]["replicas"] = 3
    namespace.change(engineArgs=OTHER_ARGS, replicas=5)
    decision = namespace.settle()

    touched = {each["metadata"]["labels"].get("omnistage.io/revision") for each in decision.apply}
    assert touched == {None, namespace.revision}
    assert namespace.deployment(old)["spec"]["replicas"] == 3


def test_going_back_half_way_finds_the_old_pods_untouched() -> None:
    namespace = ready_stage()
    old, template = namespace.revision, template_of(namespace)
    namespace.plans = frozenset({(STAGE, old)})
    namespace.change(engineArgs=OTHER_ARGS)
    namespace.settle()
    new = namespace.revision
    namespace.plans |= {(STAGE, new)}
    namespace.change(engineArgs=stage_object()["spec"]["engineArgs"])
    namespace.settle()

    assert namespace.revision == old
    assert template_of(namespace) == template
    assert condition(namespace, "Ready")["status"] == "True"
    assert namespace.revisions() == {old, new}

    namespace.plans = frozenset({(STAGE, old)})
    namespace.settle()
    assert namespace.revisions() == {old}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"runtime": {"name": "gone"}}, "RuntimeMissing"),
        ({"env": [{"name": "A"}]}, "GraphInvalid"),
        ({"parallelism": {"nodes": 2}}, "GraphInvalid"),
    ],
)
def test_an_invalid_stage_changes_nothing_and_what_serves_serves_on(
    changed: dict[str, Any], reason: str
) -> None:
    namespace = ready_stage()
    revision = namespace.revision
    namespace.change(**changed)
    decision = namespace.settle(now=LATER)

    assert (decision.apply, decision.delete) == ((), ())
    assert namespace.status["reason"] == reason
    assert f"Stage/{STAGE}: spec." in namespace.status["message"]
    assert namespace.status["revision"] == revision
    assert namespace.status["readyReplicas"] == 1
    assert namespace.status["observedGeneration"] == 2
    states = {each["type"]: each["status"] for each in namespace.status["conditions"]}
    assert states == {
        "Ready": "False",
        "Available": "True",
        "Reconciling": "False",
        "Stalled": "True",
    }


def test_a_stage_that_never_was_valid_has_no_revision() -> None:
    namespace = Namespace(stage_object(runtime={"name": "gone"}))
    namespace.settle()

    assert "revision" not in namespace.status
    assert namespace.status["revisions"] == []


def test_a_runtime_that_comes_later_is_enough() -> None:
    namespace = Namespace(stage_object(engine=None, runtime={"name": "gpu"}))
    namespace.settle()
    assert runtime_needed(namespace.stage) == "gpu"
    assert runtime_needed(stage_object()) is None

    namespace.runtime = runtime_object()
    namespace.settle()

    assert namespace.of_kind("Deployment")


def test_the_next_release_of_an_installation_starts_no_pod_anew() -> None:
    namespace = ready_stage()
    template = template_of(namespace)
    namespace.settings = dataclasses.replace(
        SETTINGS, stage_image="example.org/omnistage-stage:0.2.0", pull_secrets=("new",)
    )
    namespace.settle()
    assert template_of(namespace) == template

    namespace.change(engineArgs=OTHER_ARGS)
    namespace.settle()
    (container,) = template_of(namespace)["spec"]["containers"]
    assert container["image"] == "example.org/omnistage-stage:0.2.0"


@pytest.mark.parametrize("pods", ["cannot be pulled", "none"])
def test_an_image_that_serves_nowhere_is_replaced_by_what_the_installation_says_now(
    pods: str,
) -> None:
    namespace = Namespace(stage_object())
    namespace.settle()
    if pods != "none":
        namespace.pods = [pod(namespace.revision, container=waiting("ImagePullBackOff", "denied"))]
    namespace.settings = dataclasses.replace(SETTINGS, stage_image="example.org/mended:1")
    namespace.settle()

    assert template_of(namespace)["spec"]["containers"][0]["image"] == "example.org/mended:1"


def test_status_tells_what_is_there() -> None:
    namespace = ready_stage()
    old = namespace.revision
    namespace.plans = frozenset({(STAGE, old)})
    namespace.change(engineArgs=OTHER_ARGS, replicas=2)
    namespace.settle()
    new = namespace.revision
    namespace.pods = [
        running(old, "old-0"),
        running(new, "new-0"),
        running(new, "new-1", ready=False),
        running(new, "new-2", leaving=True),
        pod(new, "new-3", phase="Failed", reason="Evicted"),
    ]
    namespace.settle()
    status = namespace.status

    assert StageStatus.model_validate(status)
    assert (status["replicas"], status["readyReplicas"]) == (3, 2)
    assert status["selector"] == f"omnistage.io/stage={STAGE},omnistage.io/gang notin (follower)"
    assert status["revisions"] == [
        {"revision": new, "desired": 2, "ready": 1, "updated": 2, "phase": "Preparing"},
        {"revision": old, "desired": 1, "ready": 1, "updated": 1, "phase": "Serving"},
    ]
    assert status["reason"] == "Evicted"
    assert condition(namespace, "Reconciling")["status"] == "True"


def test_an_old_revision_drains_once_the_new_one_can_carry_the_load() -> None:
    namespace = ready_stage()
    old = namespace.revision
    namespace.plans = frozenset({(STAGE, old)})
    namespace.change(engineArgs=OTHER_ARGS)
    namespace.settle()
    new = namespace.revision
    namespace.pods = [running(old, "old-0"), running(new, "new-0")]
    namespace.settle()
    assert [each["phase"] for each in namespace.status["revisions"]] == ["Serving", "Draining"]

    namespace.plans = frozenset({(STAGE, new)})
    namespace.pods[0] = running(old, "old-0", leaving=True)
    namespace.settle()
    namespace.settle()
    last = namespace.status["revisions"][1]
    assert last == {"revision": old, "desired": 0, "ready": 0, "updated": 0, "phase": "Draining"}

    del namespace.pods[0]
    namespace.settle()
    assert [each["revision"] for each in namespace.status["revisions"]] == [new]


def test_a_stage_scaled_to_zero_is_as_it_should_be_and_serves_nobody() -> None:
    namespace = ready_stage()
    namespace.change(replicas=0)
    namespace.settle()
    assert (namespace.status["reason"], condition(namespace, "Ready")["status"]) == (
        "Draining",
        "False",
    )

    namespace.pods = []
    namespace.settle()

    assert condition(namespace, "Ready")["status"] == "True"
    assert condition(namespace, "Available")["status"] == "False"
    assert namespace.status["reason"] == "ScaledToZero"


def test_a_stage_at_rest_is_told_the_same_at_any_time() -> None:
    namespace = ready_stage()

    assert namespace.plan(now=LATER) == namespace.plan(now=NOW)
    assert namespace.plan(now=LATER).status == namespace.status


def test_a_condition_moves_only_when_it_changes() -> None:
    namespace = ready_stage()
    namespace.pods = [pod(namespace.revision, container=waiting("ImagePullBackOff", "denied"))]
    namespace.settle(now=LATER)

    assert condition(namespace, "Ready")["lastTransitionTime"] == LATER
    assert condition(namespace, "Stalled")["lastTransitionTime"] == LATER
    assert condition(namespace, "Reconciling")["lastTransitionTime"] == NOW

    namespace.pods = [pod(namespace.revision, container=waiting("ErrImagePull", "other words"))]
    namespace.settle(now="2026-12-01T10:00:00Z")
    assert condition(namespace, "Ready")["lastTransitionTime"] == LATER
    assert "other words" in condition(namespace, "Ready")["message"]


def test_only_its_own_pods_count() -> None:
    namespace = ready_stage()
    stranger = running(namespace.revision, "stranger")
    stranger["metadata"]["labels"]["omnistage.io/stage"] = "other"
    nobody = running(namespace.revision, "nobody")
    nobody["metadata"]["labels"] = {}
    namespace.pods += [stranger, nobody]
    namespace.settle()

    assert namespace.status["replicas"] == 1


def test_plans_name_stage_revisions() -> None:
    one, two = ("a", Revision("r1")), ("b", Revision("r2"))
    broken = {**plan_naming(one), "data": {"services.json": "?"}}

    assert plan_references([plan_naming(one, two), plan_naming(two), broken]) == {one, two}


_WORDS = ("one", "two", "three")
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arguments"), st.sampled_from(_WORDS)),
        st.tuples(st.just("replicas"), st.integers(0, 3)),
        st.tuples(st.just("name in a plan"), st.sampled_from(_WORDS)),
        st.tuples(st.just("retire the plan of"), st.sampled_from(_WORDS)),
        st.tuples(st.just("break"), st.booleans()),
        st.tuples(st.just("pods"), st.booleans()),
    ),
    max_size=12,
)


class _Walk:
    """A namespace to which things happen one after the other."""

    def __init__(self) -> None:
        self.namespace = Namespace(stage_object())
        self.namespace.settle()
        self.known = {"": self.namespace.revision}

    def step(self, what: str, value: Any) -> Decision:
        namespace = self.namespace
        if what == "arguments":
            namespace.change(engineArgs={"outputs": {"text": {"text": value}}})
        elif what == "replicas":
            namespace.change(replicas=value)
        elif what == "break":
            namespace.change(runtime={"name": "gone"} if value else None)
        elif what == "pods":
            alive = namespace.revisions()
            namespace.pods = [running(each, f"{each}-0") for each in alive] if value else []
        elif value in self.known:
            named = frozenset({(STAGE, self.known[value])})
            keep = what == "name in a plan" and self.known[value] in namespace.revisions()
            namespace.plans = namespace.plans | named if keep else namespace.plans - named
        decision = namespace.settle()
        if what == "arguments" and decision.apply:
            self.known[value] = namespace.revision
        return decision


@settings(deadline=None, max_examples=50)
@given(_STEPS)
def test_whatever_happens_what_a_plan_names_stays_and_rest_is_rest(
    steps: list[tuple[str, Any]],
) -> None:
    walk = _Walk()
    for what, value in steps:
        templates = {
            each["metadata"]["name"]: each["spec"]["template"]
            for each in walk.namespace.of_kind("Deployment")
        }
        walk.step(what, value)
        namespace = walk.namespace

        for each in namespace.of_kind("Deployment"):
            before = templates.get(each["metadata"]["name"])
            assert before is None or before == each["spec"]["template"]
        assert {revision for _, revision in namespace.plans} <= namespace.revisions()
        assert namespace.revision in namespace.revisions()
        namespace.settle()
        children, status = dict(namespace.children), namespace.status
        again = namespace.settle(now=LATER)
        assert again.status == status
        assert namespace.children == children
        assert again.delete == ()
