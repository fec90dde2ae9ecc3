"""Why a stage is not ready: a table of what scheduler and kubelet write, and what is said of it."""

import json
from typing import Any

import pytest

from fakes.stage_cluster import NOW, Object, event_about, pod, running, waiting
from omnistage_common.pipeline.resources.status import StageReason
from omnistage_operator.planning.pod_states import Finding
from omnistage_operator.planning.reasons import MAX_REASON_MESSAGE, NEEDS_A_CHANGE, explain

R = StageReason
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
REFUSED = {
    "event": "cannot start",
    "reason": "setup",
    "error": "engineArgs.max_num_sequences: unknown key, did you mean 'max_num_seqs'?",
    "field": "engineArgs.max_num_sequences",
    "level": "error",
}


def ended(status: int, *lines: object, reason: str = "Error", **more: Any) -> Object:
    """How a container's process ended, with the end of its log."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return {"exitCode": status, "reason": reason, "message": text, **more}


def after(terminated: Object, **container: Any) -> Object:
    """A container that waits to be started again."""
    return waiting(
        "CrashLoopBackOff",
        "back-off 40s restarting failed container",
        lastState={"terminated": terminated},
        restartCount=3,
        **container,
    )


def of_pod(**state: Any) -> Finding:
    return explain(desired=1, workload={}, pods=[pod("r", **state)])


UNSCHEDULABLE = {"PodScheduled": {"status": "False", "reason": "Unschedulable", "message": NO_GPU}}
GATED = {"PodScheduled": {"status": "False", "reason": "SchedulingGated", "message": "quota"}}
NO_IMAGE = 'Back-off pulling image "example.org/none": ErrImagePull: not found'
BACK_OFF = waiting("ImagePullBackOff", NO_IMAGE)
UP = {"state": {"running": {"startedAt": NOW}}}

POD_STATES: list[tuple[str, dict[str, Any], StageReason, str]] = [
    ("no node has the device", {"node": None, "conditions": UNSCHEDULABLE}, R.INSUFFICIENT_CAPACITY, NO_GPU),
    ("a gate holds it", {"node": None, "conditions": GATED}, R.PROGRESSING, "waits for a gate: quota"),
    ("nobody placed it yet", {"node": None}, R.PROGRESSING, "waits for the scheduler"),
    ("the kubelet has not begun", {}, R.PROGRESSING, "its container is made"),
    ("the image cannot be had", {"container": BACK_OFF}, R.IMAGE_PULL, NO_IMAGE),
    ("first try at the image", {"container": waiting("ErrImagePull", "denied")}, R.IMAGE_PULL, "denied"),
    ("no name of an image", {"container": waiting("InvalidImageName", "bad")}, R.IMAGE_PULL, "bad"),
    ("may not be pulled", {"container": waiting("ErrImageNeverPull")}, R.IMAGE_PULL, "ErrImageNeverPull"),
    (
        "a secret is missing",
        {"container": waiting("CreateContainerConfigError", 'secret "hub" not found')},
        R.CONFIG_ERROR,
        'secret "hub" not found',
    ),
    ("cannot be run", {"container": waiting("RunContainerError", "no such file")}, R.CRASH_LOOP, "no such file"),
    ("is being made", {"container": waiting("ContainerCreating")}, R.PROGRESSING, "its container is made"),
    ("arguments are refused", {"container": after(ended(3, REFUSED))}, R.ENGINE_ARGS_REJECTED, REFUSED["error"]),
    (
        "refused, and between two lives",
        {"container": {"state": {"terminated": ended(3, REFUSED)}}},
        R.ENGINE_ARGS_REJECTED,
        REFUSED["error"],
    ),
    (
        "refused, and about to be refused again",
        {"container": {**UP, "lastState": {"terminated": ended(3, REFUSED)}, "restartCount": 1}},
        R.ENGINE_ARGS_REJECTED,
        REFUSED["error"],
    ),
    (
        "the field is named where the error does not",
        {"container": after(ended(3, {"error": "must not be 0", "field": "limits"}))},
        R.ENGINE_ARGS_REJECTED,
        "limits: must not be 0",
    ),
    (
        "weights are broken",
        {"container": after(ended(3, {"reason": "invalid_weights", "error": "no config.json"}))},
        R.WEIGHTS_INVALID,
        "no config.json",
    ),
    (
        "an extra is not in the image",
        {"container": after(ended(3, {"reason": "missing_dependency", "error": "install vllm"}))},
        R.MISSING_DEPENDENCY,
        "install vllm",
    ),
    (
        "words of others after our own",
        {"container": after(ended(3, REFUSED, "terminate called", ""))},
        R.ENGINE_ARGS_REJECTED,
        REFUSED["error"],
    ),
    (
        "refused without a word",
        {"container": after(ended(3))},
        R.ENGINE_ARGS_REJECTED,
        "refused its settings without a word",
    ),
    (
        "too much memory",
        {"container": after(ended(137, "x", reason="OOMKilled"))},
        R.OOM_KILLED,
        "used more memory than its limit and was ended",
    ),
    (
        "the engine failed",
        {"container": after(ended(1, {"error": "CUDA error: device lost", "reason": "engine_failed"}))},
        R.CRASH_LOOP,
        "ended with exit status 1: CUDA error: device lost",
    ),
    (
        "an error that nobody expected",
        {"container": after(ended(1, "Traceback:", "  File x", "ValueError: no", ""))},
        R.CRASH_LOOP,
        "ended with exit status 1: ValueError: no",
    ),
    ("killed", {"container": after(ended(137, "", signal=9))}, R.CRASH_LOOP, "ended by signal 9"),
    (
        "there is no such program",
        {"container": after(ended(128, "exec: not found", reason="StartError"))},
        R.CRASH_LOOP,
        "ended with exit status 128 (StartError): exec: not found",
    ),
    ("it starts", {"container": {**UP, "started": False}}, R.PROGRESSING, "its process starts"),
    ("it loads", {"container": {**UP, "started": True}}, R.MODEL_LOADING, "its engine loads the model"),
    (
        "it loads again after one crash",
        {
            "container": {
                **UP,
                "started": True,
                "restartCount": 1,
                "lastState": {"terminated": ended(1, "x")},
            }
        },
        R.MODEL_LOADING,
        "its engine loads the model; the one before ended with exit status 1: x",
    ),
    (
        "it loads between crashes",
        {
            "container": {
                **UP,
                "started": True,
                "restartCount": 2,
                "lastState": {"terminated": ended(1, "x")},
            }
        },
        R.CRASH_LOOP,
        "ended with exit status 1: x",
    ),
    (
        "its node is silent",
        {"container": {**UP, "started": True, "ready": True}},
        R.PROGRESSING,
        "its node does not answer",
    ),
    (
        "a node put it out",
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        R.EVICTED,
        "The node was low on resource: memory.",
    ),
    (
        "its node could not take it after all",
        {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough"},
        R.INSUFFICIENT_CAPACITY,
        "Node didn't have enough",
    ),
    (
        "the device plug-in had none",
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
        R.INSUFFICIENT_CAPACITY,
        "Allocate failed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "reason", "message"),
    [case[1:] for case in POD_STATES],
    ids=[case[0] for case in POD_STATES],
)
def test_a_pod_tells_why(state: dict[str, Any], reason: StageReason, message: str) -> None:
    found = of_pod(**state)

    assert found.reason is reason
    assert found.message == f"0 of 1 replica ready; replica-0: {message}"


@pytest.mark.parametrize(
    ("word", "note", "reason"),
    [
        ("FailedMount", 'configmap "x" not found', R.VOLUME_NOT_MOUNTED),
        ("FailedAttachVolume", "already attached", R.VOLUME_NOT_MOUNTED),
        ("Pulling", 'Pulling image "example.org/large"', R.PROGRESSING),
        ("FailedCreatePodSandBox", "no network", R.PROGRESSING),
    ],
)
def test_events_tell_what_a_pod_does_not(word: str, note: str, reason: StageReason) -> None:
    mine = pod("r", container=waiting("ContainerCreating"))
    other = pod("r", "replica-1")
    events = [
        event_about(other, "FailedMount", "of another"),
        event_about(mine, word, note, at="2026-12-01T08:00:05Z"),
        event_about(mine, word, "an earlier one", at="2026-12-01T08:00:01Z"),
    ]

    found = explain(desired=1, workload={}, pods=[mine], events=events)

    assert (found.reason, found.message.partition("replica-0: ")[2]) == (reason, note)


def test_a_mount_that_failed_at_first_is_forgotten_once_the_image_is_pulled() -> None:
    mine = pod("r", container=waiting("ContainerCreating"))
    events = [
        event_about(mine, "Pulling", "Pulling image", at="2026-12-01T08:00:09Z"),
        event_about(mine, "FailedMount", "failed to sync", at="2026-12-01T08:00:01Z"),
    ]

    found = explain(desired=1, workload={}, pods=[mine], events=events)

    assert found.message.endswith("replica-0: Pulling image")


def test_a_scheduler_that_tells_by_event_only_is_heard() -> None:
    mine = pod("r", node=None)
    found = explain(
        desired=1,
        workload={},
        pods=[mine],
        events=[event_about(mine, "FailedScheduling", NO_GPU)],
    )

    assert found.reason is R.INSUFFICIENT_CAPACITY
    assert NO_GPU in found.message


def test_an_image_that_is_tried_again_and_again_says_one_thing() -> None:
    why = 'Failed to pull image "example.org/none": not found'
    states = (waiting("ErrImagePull", "rpc error"), waiting("ImagePullBackOff", "Back-off"))
    said = set()
    for state in states:
        mine = pod("r", container=state)
        events = [event_about(mine, "Failed", why), event_about(mine, "Failed", "Error: Back-off")]
        said.add(explain(desired=1, workload={}, pods=[mine], events=events))

    assert [found.message for found in said] == [f"0 of 1 replica ready; replica-0: {why}"]


def test_a_crash_loop_says_one_thing_through_all_its_states() -> None:
    end = ended(1, "ValueError: no")
    states: list[Object] = [
        {"state": {"terminated": end}, "restartCount": 2},
        {"state": {"running": {}}, "lastState": {"terminated": end}, "restartCount": 3},
        after(end),
    ]

    assert len({of_pod(container=state) for state in states}) == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: gpus, requested: 1', R.QUOTA_EXCEEDED),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', R.PODS_REFUSED),
    ],
)
def test_pods_that_are_not_even_made_are_explained_by_their_deployment(
    message: str, reason: StageReason
) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    deployment = {"status": {"conditions": [{"type": "Available", "status": "False"}, failure]}}

    found = explain(desired=2, workload=deployment, pods=[running("r")])

    assert found.reason is reason
    assert found.message == f"1 of 2 replicas ready; its pods: {message}"


def test_a_failure_that_is_over_is_not_told() -> None:
    failure = {"type": "ReplicaFailure", "status": "False", "message": "exceeded quota"}
    found = explain(desired=1, workload={"status": {"conditions": [failure]}}, pods=[])

    assert found.reason is R.PROGRESSING


def test_the_most_telling_pod_wins_and_those_like_it_are_counted() -> None:
    pods = [
        running("r", "replica-0"),
        running("r", "replica-1", ready=False),
        pod("r", "replica-2", container=after(ended(3, REFUSED))),
        pod("r", "replica-3", container=after(ended(3, REFUSED))),
        pod("r", "replica-4", node=None, conditions=UNSCHEDULABLE),
    ]

    found = explain(desired=5, workload={}, pods=pods[::-1])

    assert found.reason is R.ENGINE_ARGS_REJECTED
    assert found.message.startswith("1 of 5 replicas ready; replica-2 (and 1 more): engineArgs")


def test_enough_ready_replicas_are_ready_whatever_else_lies_about() -> None:
    lost = pod("r", "lost", phase="Failed", reason="Evicted")

    assert explain(desired=1, workload={}, pods=[lost, running("r")]).reason is R.READY


def test_a_replica_that_leaves_does_not_count() -> None:
    found = explain(desired=1, workload={}, pods=[running("r", leaving=True)])

    assert found == Finding(
        reason=R.PROGRESSING, message="0 of 1 replica ready; its pods: being made"
    )


def test_a_workload_that_is_not_there_yet_is_on_its_way() -> None:
    found = explain(desired=1, workload=None, pods=[])

    assert found.message == "0 of 1 replica ready; its workload: being made"


def test_no_replica_is_wanted_and_the_last_ones_drain() -> None:
    going = running("r", leaving=True)

    assert explain(desired=0, workload={}, pods=[going]).reason is R.DRAINING
    assert explain(desired=0, workload={}, pods=[]).reason is R.SCALED_TO_ZERO


def test_a_message_is_bounded() -> None:
    long = {"PodScheduled": {"reason": "Unschedulable", "message": "no " * 10_000}}
    found = explain(
        desired=1,
        workload={},
        pods=[pod("r", "p" * 253, node=None, conditions=long)],
    )

    assert len(found.message) <= MAX_REASON_MESSAGE


def test_what_heals_by_itself_is_not_called_stuck() -> None:
    healing = {R.INSUFFICIENT_CAPACITY, R.QUOTA_EXCEEDED, R.MODEL_LOADING, R.EVICTED, R.PROGRESSING}

    assert not healing & NEEDS_A_CHANGE
    assert {R.ENGINE_ARGS_REJECTED, R.CRASH_LOOP, R.IMAGE_PULL} <= NEEDS_A_CHANGE
