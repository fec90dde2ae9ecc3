"""What `omnistage doctor` says of a pipeline, from its status alone."""

from typing import Any

import pytest

from omnistage_cli.commands.diagnosis import diagnosis_lines, is_ready
from omnistage_common.ids import StageName
from omnistage_common.pipeline.resources.status import InferencePipelineStatus

WHEN = "2026-12-01T00:00:00Z"


def condition(name: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": name,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": WHEN,
    }


def stage(name: str, reason: str, message: str = "", *, ready: int = 1) -> dict[str, Any]:
    return {"name": name, "desired": 1, "ready": ready, "reason": reason, "message": message}


def said(
    status: dict[str, Any], generation: int = 3, words: dict[StageName, str] | None = None
) -> str:
    pipeline = {"metadata": {"namespace": "team", "name": "chat", "generation": generation}}
    status = {"observedGeneration": 3, **status} if status else {}
    read = InferencePipelineStatus.model_validate(status)
    return "\n".join(line.plain for line in diagnosis_lines(pipeline, read, words))


READY = {
    "conditions": [condition("Ready", "True", "Ready"), condition("Routable", "True", "Routable")],
    "currentRevision": "a1",
    "targetRevision": "a1",
    "stagesReady": "2/2",
    "stages": [stage("thinker", "Ready"), stage("talker", "Ready")],
    "gateways": [{"name": "gateway-0", "turn": 1, "serving": "a1", "routable": ["a1"]}],
}


def test_a_ready_pipeline_is_short() -> None:
    assert said(READY).splitlines() == [
        "team/chat is ready (2/2 stages)",
        "  revision a1 serves",
        "  ✔ thinker  1/1 ready",
        "  ✔ talker  1/1 ready",
        "  ✔ gateway-0  serves a1",
    ]


def test_what_a_stage_that_loads_has_said_last_follows_its_reason() -> None:
    loading = stage("talker", "ModelLoading", "its engine loads the model", ready=0)
    status = {**READY, "stages": [stage("thinker", "Ready"), loading]}

    lines = said(status, words={StageName("talker"): "the log of talker-0: reading shard 3"})

    at = lines.splitlines().index("      its engine loads the model")
    assert lines.splitlines()[at + 1] == "      the log of talker-0: reading shard 3"


@pytest.mark.parametrize(("generation", "ready"), [(3, True), (4, False)])
def test_what_was_said_of_an_older_spec_does_not_make_it_ready(
    generation: int, *, ready: bool
) -> None:
    pipeline = {"metadata": {"namespace": "team", "name": "chat", "generation": generation}}
    status = InferencePipelineStatus.model_validate({**READY, "observedGeneration": 3})

    assert is_ready(pipeline, status) is ready


def test_a_stage_that_is_not_ready_is_explained_with_a_remedy() -> None:
    lines = said(
        {
            "conditions": [condition("Ready", "False", "InsufficientCapacity")],
            "stages": [
                stage("thinker", "InsufficientCapacity", "0/3 nodes: no nvidia.com/gpu", ready=0)
            ],
        }
    )

    assert "team/chat is not ready" in lines
    assert (
        "  ✘ thinker  0/1 ready  InsufficientCapacity\n      0/3 nodes: no nvidia.com/gpu" in lines
    )
    assert "      → Add a node" in lines


def test_a_stage_that_waits_for_others_needs_no_remedy() -> None:
    lines = said(
        {
            "conditions": [condition("Ready", "False", "Progressing")],
            "stages": [stage("thinker", "Progressing", "ready; waits for the other stages")],
        }
    )

    assert "  … thinker  1/1 ready\n      ready; waits for the other stages" in lines
    assert "→" not in lines


def test_a_rollout_says_where_it_goes_and_what_a_gateway_still_finishes() -> None:
    lines = said(
        {
            **READY,
            "conditions": [condition("Ready", "False", "Progressing")],
            "targetRevision": "b2",
            "gateways": [{"name": "gateway-0", "serving": "b2", "inUse": ["a1"]}],
        }
    )

    assert "revision a1 serves, on the way to b2" in lines
    assert "  … gateway-0  serves b2, finishes a1" in lines


@pytest.mark.parametrize("reason", ["GraphInvalid", "TemplateMissing"])
def test_what_is_wrong_with_the_pipeline_itself_comes_first(reason: str) -> None:
    lines = said(
        {
            "conditions": [
                condition("Ready", "False", reason, "spec.stages[x]: no such stage"),
                condition("GraphValid", "False", reason, "spec.stages[x]: no such stage"),
            ]
        }
    ).splitlines()

    assert lines[1] == f"  ✘ the pipeline  {reason}"
    assert lines[2].strip() == "spec.stages[x]: no such stage"


def test_without_a_gateway_it_says_so() -> None:
    lines = said({"conditions": [condition("Routable", "False", "NoGateway", "no gateway")]})

    assert "  ✘ gateways  NoGateway\n      no gateway" in lines


def test_a_change_that_nobody_has_looked_at_is_told() -> None:
    lines = said(READY, generation=4)

    assert "its newest change was not looked at yet" in lines
    assert "is not ready" in lines


def test_a_pipeline_without_an_operator_is_told_from_one_that_waits() -> None:
    assert "no operator has looked at it yet" in said({})


def test_lines_fit_a_terminal() -> None:
    long = said(
        {
            "conditions": [condition("Ready", "False", "CrashLoop")],
            "stages": [stage("thinker", "CrashLoop", "word " * 100, ready=0)],
        }
    )

    assert max(map(len, long.splitlines())) <= 104
