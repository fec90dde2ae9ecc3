"""Dashboards: where they are made, that Grafana can show them, and that what they show is measured."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from omnistage_common.ids import new_incarnation, this_host
from omnistage_common.pipeline.published import STAGE_LABEL
from omnistage_common.tensors import TensorPlane
from omnistage_gateway.admission import Admission as GatewayAdmission
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_operator.control.metrics import OperatorMetrics
from omnistage_stage.service.admission import Admission as StageAdmission
from omnistage_stage.service.metrics import StageMetrics
from unit.charts.rendering import CHART, render

PROMETHEUS: Final = "monitoring.coreos.com/v1"
GRAFANA: Final = "grafana.integreatly.org/v1beta1"
FILES: Final = sorted((CHART / "dashboards").glob("*.json"))
STAGE: Final = "omnistage_io_stage"
"""How Prometheus writes the label that the monitor of stages asks for."""
METRIC: Final = re.compile(r"\b(omnistage_[a-z_]+)\b")
COLUMNS: Final = 24
ENDINGS: Final = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "gauge": ("",),
}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One that the chart has."""
    read: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """Names of all series that operator, gateways and stages have."""
    registry = CollectorRegistry()
    OperatorMetrics(registry)
    admission = GatewayAdmission(max_requests=1, max_body_bytes=1, body_budget_bytes=1)
    GatewayMetrics(registry, admission=admission, catalog=Catalog())
    plane = TensorPlane(
        incarnation=new_incarnation(),
        host=this_host(),
        slab_bytes=1 << 20,
        directory=tmp_path_factory.mktemp("slab"),
    )
    StageMetrics(registry, admission=StageAdmission(max_running=1, max_queued=1), plane=plane)
    yield {
        f"{family.name}{ending}" for family in registry.collect() for ending in ENDINGS[family.type]
    }
    plane.close()


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show something."""
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def expressions(dashboard: dict[str, Any]) -> list[str]:
    """All that is asked of Prometheus, by panels and variables."""
    asked = [each["expr"] for panel in panels(dashboard) for each in panel["targets"]]
    variables = dashboard["templating"]["list"]
    return asked + [each["query"]["query"] for each in variables if each["type"] == "query"]


@pytest.mark.parametrize(
    ("create", "apis", "maps", "grafana"),
    [
        ("Auto", (), 0, 0),
        ("Auto", (PROMETHEUS,), 2, 0),
        ("Auto", (GRAFANA,), 2, 2),
        ("Always", (), 2, 0),
        ("Never", (PROMETHEUS, GRAFANA), 0, 0),
    ],
)
def test_dashboards_are_made_where_they_are_understood(
    create: str, apis: tuple[str, ...], maps: int, grafana: int
) -> None:
    rendered = render({"dashboards": {"create": create}}, apis=apis)

    assert len(rendered.of("ConfigMap")) == maps
    assert len(rendered.of("GrafanaDashboard")) == grafana


def test_each_is_a_file_that_grafana_finds() -> None:
    rendered = render({"dashboards": {"folder": "Models: all"}}, apis=(GRAFANA,))

    held = {name: each for each in rendered.of("ConfigMap").values() for name in each["data"]}
    assert held.keys() == {path.name for path in FILES}
    for path in FILES:
        config = held[path.name]
        assert json.loads(config["data"][path.name]) == json.loads(path.read_text("utf-8"))
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        shown = rendered.one("GrafanaDashboard", config["metadata"]["name"])["spec"]
        assert shown["configMapRef"] == {"name": config["metadata"]["name"], "key": path.name}
        assert shown["folder"] == "Models: all"


def test_everything_that_is_shown_is_measured(
    dashboard: dict[str, Any], measured: set[str]
) -> None:
    asked = {name for each in expressions(dashboard) for name in METRIC.findall(each)}

    assert asked - {STAGE} - measured == set()
    assert asked


def test_series_of_stages_say_of_which(dashboard: dict[str, Any]) -> None:
    monitor = render(apis=(PROMETHEUS,)).one("PodMonitor", "omnistage-stage")

    assert STAGE_LABEL in monitor["spec"]["podTargetLabels"]
    assert re.sub(r"[^a-z]", "_", STAGE_LABEL) == STAGE
    for each in expressions(dashboard):
        assert (
            "omnistage_stage_" not in each
            or STAGE in each
            or "transport" in each
            or "$" not in each
        )


def test_panels_say_what_they_show_and_stand_beside_each_other(dashboard: dict[str, Any]) -> None:
    assert len({each["id"] for each in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels(dashboard):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
    cells = [
        (x, y)
        for each in dashboard["panels"]
        for place in [each["gridPos"]]
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < COLUMNS


def test_no_two_have_one_name() -> None:
    read = [json.loads(Path(path).read_text(encoding="utf-8")) for path in FILES]

    assert len({each["uid"] for each in read}) == len({each["title"] for each in read}) == len(read)
