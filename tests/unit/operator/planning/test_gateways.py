"""Gateways that live, and who has a model name first."""

from typing import Any

import pytest

from omnistage_operator.planning.gateways import (
    departed_gateways,
    elder,
    live_gateways,
    served_names,
)

READY = {"conditions": [{"type": "Ready", "status": "True"}]}
UNREADY = {"conditions": [{"type": "Ready", "status": "False"}]}


def pod(status: dict[str, Any], **metadata: object) -> dict[str, Any]:
    return {"metadata": {"name": "gateway-0", **metadata}, "status": status}


@pytest.mark.parametrize(
    ("seen", "lives"),
    [
        (pod(READY), True),
        (pod(UNREADY), False),
        (pod({}), False),
        (pod(UNREADY, deletionTimestamp="2026-12-01T00:00:00Z"), True),
        (pod({"phase": "Failed", **READY}), False),
        (pod({"phase": "Succeeded"}, deletionTimestamp="2026-12-01T00:00:00Z"), False),
    ],
    ids=["ready", "not ready", "new", "leaving", "failed", "left"],
)
def test_a_gateway_lives_while_it_may_have_requests(seen: dict[str, Any], *, lives: bool) -> None:
    assert live_gateways([seen]) == (("gateway-0",) if lives else ())


def test_gateways_come_in_order() -> None:
    pods = [pod(READY, name=name) for name in ("b", "a")]

    assert live_gateways(pods) == ("a", "b")


def test_a_gateway_that_is_gone_has_no_say_any_more_but_one_that_is_not_ready_keeps_its_own() -> (
    None
):
    status = {"gateways": [{"name": "gone"}, {"name": "gateway-0"}]}

    assert departed_gateways(status, [pod(UNREADY)]) == ("gone",)
    assert departed_gateways({}, [pod(READY)]) == ()


def pipeline(name: str, created: str, *served: str, namespace: str = "team") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"model": {"servedNames": list(served)}}}


def test_a_pipeline_serves_its_own_name_when_it_names_no_other() -> None:
    assert served_names(pipeline("chat", "1")) == ("chat",)
    assert served_names(pipeline("chat", "1", "a", "b")) == ("a", "b")
    assert served_names({"metadata": {"name": "chat"}, "spec": {}}) == ("chat",)


def test_the_oldest_pipeline_has_a_name_and_in_doubt_the_first_in_order() -> None:
    old, new = pipeline("b", "2026-01-01T00:00:00Z"), pipeline("a", "2026-01-02T00:00:00Z")
    twin = pipeline("c", "2026-01-01T00:00:00Z")

    assert elder(new, [old, new]) == old
    assert elder(old, [old, new, twin]) is None
    assert elder(twin, [old]) == old
    assert elder(old, []) is None
