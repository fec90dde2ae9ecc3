"""Does the live object hold the intent? Every way in which the API server writes it differently."""

import copy
from typing import Any

import pytest

from omnistage_operator.control.holding import differences, holds
from omnistage_operator.control.quantities import amount_of, same_quantity

LIVE: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "thinker",
        "uid": "u",
        "generation": 3,
        "labels": {"a": "1", "added-by": "somebody"},
        "ownerReferences": [{"uid": "o", "name": "s", "controller": True}],
        "finalizers": ["theirs", "ours"],
    },
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"a": "1"}},
        "strategy": {"type": "RollingUpdate"},
        "template": {
            "spec": {
                "restartPolicy": "Always",
                "nodeSelector": {"gpu": "h200"},
                "containers": [
                    {
                        "name": "sidecar",
                        "image": "mesh",
                    },
                    {
                        "name": "stage",
                        "image": "stage:1",
                        "args": ["--listen", "x"],
                        "env": [{"name": "INJECTED", "value": "y"}, {"name": "A", "value": "1"}],
                        "ports": [{"name": "grpc", "containerPort": 7001, "protocol": "TCP"}],
                        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                        "securityContext": {"allowPrivilegeEscalation": False},
                        "volumeMounts": [{"mountPath": "/cache", "name": "shm"}],
                    },
                ],
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
            }
        },
    },
    "status": {"readyReplicas": 2},
}


def deployment(**stage: Any) -> dict[str, Any]:
    """An intent that sets these fields of the container."""
    return {"spec": {"template": {"spec": {"containers": [{"name": "stage", **stage}]}}}}


HELD: dict[str, dict[str, Any]] = {
    "a part": {"spec": {"replicas": 2}},
    "labels beside which others stand": {"metadata": {"labels": {"a": "1"}}},
    "a container beside an injected one": deployment(image="stage:1"),
    "variables beside injected ones": deployment(env=[{"name": "A", "value": "1"}]),
    "a port without its default protocol": deployment(
        ports=[{"name": "grpc", "containerPort": 7001}]
    ),
    "the same amounts": deployment(resources={"requests": {"cpu": "1000m", "memory": "1024Mi"}}),
    "an amount as a number": deployment(resources={"requests": {"cpu": 1}}),
    "a size of a volume": {
        "spec": {
            "template": {
                "spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1024Mi"}}]}
            }
        }
    },
    "empty things that were dropped": deployment(command=[], lifecycle={}, workingDir="", tty=None),
    "an empty struct that others filled": {"spec": {"strategy": {}}},
    "false where it is false": deployment(securityContext={"allowPrivilegeEscalation": False}),
    "a finalizer among others": {"metadata": {"finalizers": ["ours"]}},
    "an owner": {"metadata": {"ownerReferences": [{"uid": "o", "controller": True}]}},
    "an entry of a list without keys with defaults filled in": {
        "spec": {"template": {"spec": {"tolerations": [{"key": "gpu"}]}}}
    },
    "the whole selector": {"spec": {"selector": {"matchLabels": {"a": "1"}}}},
}

NOT_HELD: dict[str, tuple[dict[str, Any], str]] = {
    "another number": ({"spec": {"replicas": 3}}, "spec.replicas"),
    "a missing label": ({"metadata": {"labels": {"b": "1"}}}, "metadata.labels.b"),
    "another image": (
        deployment(image="stage:2"),
        "spec.template.spec.containers.stage.image",
    ),
    "a missing container": (
        {"spec": {"template": {"spec": {"containers": [{"name": "other"}]}}}},
        "spec.template.spec.containers.other",
    ),
    "another amount": (
        deployment(resources={"requests": {"cpu": "2"}}),
        "spec.template.spec.containers.stage.resources.requests.cpu",
    ),
    "an argument more": (
        deployment(args=["--listen", "x", "y"]),
        "spec.template.spec.containers.stage.args",
    ),
    "arguments in another order": (
        deployment(args=["x", "--listen"]),
        "spec.template.spec.containers.stage.args.0",
    ),
    "false where nothing is": (
        {"spec": {"template": {"spec": {"automountServiceAccountToken": False}}}},
        "spec.template.spec.automountServiceAccountToken",
    ),
    "0 where false is": (
        deployment(securityContext={"allowPrivilegeEscalation": 0, "privileged": True}),
        "spec.template.spec.containers.stage.securityContext.allowPrivilegeEscalation",
    ),
    "a selector with less": (
        {"spec": {"template": {"spec": {"nodeSelector": {}}}}},
        "spec.template.spec.nodeSelector",
    ),
    "an empty list that is not": (
        {"spec": {"template": {"spec": {"tolerations": []}}}},
        "spec.template.spec.tolerations",
    ),
    "a map where text is": (
        deployment(image={"name": "stage"}),
        "spec.template.spec.containers.stage.image",
    ),
    "a missing finalizer": ({"metadata": {"finalizers": ["new"]}}, "metadata.finalizers"),
    "text that only looks like an amount": (
        deployment(env=[{"name": "A", "value": "1000m"}]),
        "spec.template.spec.containers.stage.env.A.value",
    ),
}


@pytest.mark.parametrize("intent", HELD.values(), ids=HELD.keys())
def test_the_live_object_holds(intent: dict[str, Any]) -> None:
    assert differences(LIVE, intent) == frozenset()
    assert holds(LIVE, intent)


@pytest.mark.parametrize(("intent", "path"), NOT_HELD.values(), ids=NOT_HELD.keys())
def test_the_live_object_does_not_hold(intent: dict[str, Any], path: str) -> None:
    assert path in differences(LIVE, intent)
    assert not holds(LIVE, intent)


def test_an_object_holds_itself_and_comparing_changes_nothing() -> None:
    before = copy.deepcopy(LIVE)

    assert holds(LIVE, LIVE)
    assert before == LIVE


def test_what_is_not_there_holds_nothing() -> None:
    assert not holds(None, {})
    assert differences(None, {}) == {"."}


def test_a_container_may_have_the_name_of_a_field() -> None:
    def named(name: str, port: int) -> dict[str, Any]:
        return {"containers": [{"name": name, "ports": [{"containerPort": port}]}]}

    assert holds(named("spec", 1), named("spec", 1))
    assert not holds(named("spec", 1), named("spec", 2))


def test_rules_of_a_network_policy_are_one_value() -> None:
    def policy(*ports: int) -> dict[str, Any]:
        return {"spec": {"ingress": [{"ports": [{"port": port} for port in ports]}]}}

    assert not holds(policy(1, 2), policy(1))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", "1000m", True),
        ("0.5", "500m", True),
        (1, "1", True),
        ("1Gi", "1024Mi", True),
        ("1G", "1000M", True),
        ("1Gi", "1G", False),
        ("1e3", "1k", True),
        ("2E", "2000P", True),
        ("100u", "0.0001", True),
        ("", "", False),
        ("1 Gi", "1Gi", False),
        (True, 1, False),
        (None, None, False),
        ("inf", "inf", False),
    ],
)
def test_amounts_are_compared_as_numbers(one: Any, other: Any, *, same: bool) -> None:
    assert same_quantity(one, other) is same
    assert same_quantity(other, one) is same


def test_what_is_no_quantity_has_no_amount() -> None:
    none_of_them: list[Any] = ["x", "1x", None, [], False]

    assert [amount_of(value) for value in none_of_them] == [None] * 5
