"""The objects that the operator's benchmark works on, and what its gateway says of them."""

from collections import Counter
from typing import Any

import pytest

from omnistage_cli.bench.operator.operator_process import OperatorOrder
from omnistage_cli.bench.operator.scene import STAGE_NAMES, Scene, new_scene
from omnistage_cli.bench.operator.simulated_gateway import acknowledgement
from omnistage_common.pipeline.loading import load_objects
from omnistage_common.pipeline.standing import stand_alone
from omnistage_operator.settings import parse_settings


@pytest.fixture
def scene() -> Scene:
    return Scene(name="bench-operator-1", count=500)


def test_every_run_has_a_name_of_its_own() -> None:
    assert new_scene(1).name != new_scene(1).name


def test_each_pipeline_stands_and_has_three_stages_that_compute_nothing(scene: Scene) -> None:
    pipelines = scene.pipelines()

    assert len({each["metadata"]["name"] for each in pipelines}) == scene.count
    standing = stand_alone(load_objects([pipelines[0], scene.template(), scene.runtime()]))
    assert tuple(stage.name for stage in standing.plan.stages) == STAGE_NAMES
    assert {stage.engine for stage in standing.plan.stages} == {"simulated"}


def test_pipelines_are_spread_over_namespaces_of_the_run(scene: Scene) -> None:
    made = {each["metadata"]["name"] for each in scene.namespaces()}
    used = Counter(each["metadata"]["namespace"] for each in scene.pipelines())

    assert used.keys() == set(scene.spaces) == made - {scene.name}
    assert max(used.values()) <= 50
    assert all(
        scene.chosen == "=".join(label)
        for each in scene.namespaces()
        for label in each["metadata"]["labels"].items()
    )


def test_pods_of_the_run_fit_on_its_nodes_and_on_no_others(scene: Scene) -> None:
    spec, nodes = scene.runtime()["spec"], scene.nodes()
    pods = scene.count * len(STAGE_NAMES) + 1

    assert all(spec["nodeSelector"].items() <= dict(node.labels).items() for node in nodes)
    assert all(node.taints for node in nodes)
    assert len(nodes) * 5000 >= pods
    assert len({node.name for node in nodes}) == len(nodes)


def test_a_small_run_has_more_than_one_node() -> None:
    assert len(Scene(name="bench-operator-1", count=1).nodes()) == 2


def pipeline(**status: Any) -> dict[str, Any]:
    """A pipeline in some state."""
    return {"metadata": {"name": "p", "namespace": "ns"}, "status": status}


READY = {"name": "a", "desired": 1, "ready": 1}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"stages": [READY]},
        {"currentRevision": "r", "stages": []},
        {"currentRevision": "r", "stages": [READY, {"name": "b", "desired": 1}]},
    ],
    ids=["no status", "no revision", "no stages", "a stage is not ready"],
)
def test_a_gateway_says_nothing_of_what_it_could_not_serve(status: dict[str, Any]) -> None:
    assert acknowledgement(pipeline(**status), "gateway") is None


def test_a_gateway_serves_the_current_revision_once_its_stages_are_ready() -> None:
    said = acknowledgement(pipeline(currentRevision="r", turn=2, stages=[READY]), "gateway")

    assert said == {
        "name": "gateway",
        "turn": 2,
        "serving": "r",
        "routable": ["r"],
        "inUse": [],
    }


def test_the_operator_understands_how_it_is_started(tmp_path: Any) -> None:
    order = OperatorOrder(
        namespace="ns", watched=("a", "b"), kubeconfig=tmp_path / "config", context="there"
    )

    settings = parse_settings(order.arguments(18080))

    assert (settings.namespace, settings.watched) == ("ns", ("a", "b"))
    assert (settings.kubeconfig, settings.context) == (tmp_path / "config", "there")
    assert str(settings.metrics) == "127.0.0.1:18080"
    assert settings.planning.gateway_namespace == "ns"


def test_without_a_kubeconfig_the_operator_takes_what_kubectl_takes() -> None:
    settings = parse_settings(OperatorOrder(namespace="ns", watched=("a",)).arguments(18080))

    assert settings.kubeconfig is None
    assert settings.context is None
