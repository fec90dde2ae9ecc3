"""A real API server takes the definitions, and refuses, defaults, merges and shows as they say.

No node is needed and none is simulated: nothing here runs a pod.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.definitions import applied
from cluster.laboratory.access import Cluster
from fakes.resource_table import INVALID, VALID, Invalid, largest_template, text_of
from fakes.structural import nodes
from omnistage_common.errors import SetupError
from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.resolver import resolve
from omnistage_operator.definitions.columns import APPEARANCES, CATEGORY, GROUP, VERSION
from omnistage_operator.definitions.writing import definition_of

ROOT: Final = Path(__file__).parents[2]
SAMPLES: Final = sorted((ROOT / "deploy" / "pipelines").glob("*.yaml"))
NAMES: Final = {kind: f"{looks.plural}.{GROUP}" for kind, looks in APPEARANCES.items()}
PUBLISHING_SECONDS: Final = 60.0
CONDITION: Final = {
    "status": "True",
    "reason": "Progressing",
    "message": "",
    "lastTransitionTime": "2026-11-30T10:00:00Z",
}

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[None]:
    """The definitions, in a cluster that may have had them; what was not there goes again."""
    with applied(cluster):
        yield


@pytest.fixture(scope="module")
def published(cluster: Cluster) -> dict[str, Any]:
    """Kind -> schema, as the API server tells `kubectl explain`; it does so a little later."""
    path = f"/openapi/v3/apis/{GROUP}/{VERSION}"
    end = time.monotonic() + PUBLISHING_SECONDS
    while time.monotonic() < end:
        if path.removeprefix("/openapi/v3/") in cluster.call("get", "--raw=/openapi/v3"):
            schemas = json.loads(cluster.call("get", f"--raw={path}"))["components"]["schemas"]
            kinds = {name.rpartition(".")[2]: schema for name, schema in schemas.items()}
            if set(NAMES) <= set(kinds):
                return kinds
        time.sleep(0.5)
    pytest.fail(f"{path} does not hold all kinds after {PUBLISHING_SECONDS:.0f} s")


def refusal(cluster: Cluster, *arguments: str, text: str = "") -> str:
    """All that kubectl says when the API server refuses."""
    done = subprocess.run(
        [cluster.kubectl, *arguments],
        check=False,
        capture_output=True,
        input=text,
        text=True,
        timeout=60,
        env=cluster.environment,
    )
    assert done.returncode != 0, f"accepted: {done.stdout}"
    return done.stderr


def stored(cluster: Cluster, text: str) -> str:
    """Resources as the API server would store them, as YAML; nothing is stored."""
    return cluster.call("create", "--dry-run=server", "--output=yaml", "--filename=-", text=text)


def in_namespace(kind: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """A valid resource of the table, with parts of its spec replaced."""
    valid = VALID[kind]
    metadata = {**valid["metadata"], "namespace": namespace}
    return {**valid, "metadata": metadata, "spec": {**valid["spec"], **spec}}


@pytest.fixture
def template(cluster: Cluster, namespace: str) -> Iterator[dict[str, Any]]:
    """A template of the test's own in the cluster."""
    document = {**VALID["PipelineTemplate"], "metadata": {"name": namespace}}
    cluster.apply(document)
    yield document
    cluster.call("delete", "pipelinetemplate", namespace)


def test_the_api_server_finds_nothing_to_complain_about(cluster: Cluster) -> None:
    for name in NAMES.values():
        conditions = {
            each["type"]: each["status"]
            for each in cluster.get("crd", name)["status"]["conditions"]
        }
        assert conditions["Established"] == conditions["NamesAccepted"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_accepted_and_means_the_same_afterwards(cluster: Cluster, path: Path) -> None:
    written = path.read_text(encoding="utf-8")

    plans = [
        resolve(load_text(text, file=path.name)) for text in (written, stored(cluster, written))
    ]

    assert plans[0].revision == plans[1].revision
    assert plans[0].stages == plans[1].stages


def test_what_the_table_starts_from_is_accepted(cluster: Cluster) -> None:
    kept = [
        document["kind"]
        for document in yaml.safe_load_all(stored(cluster, text_of(*VALID.values())))
    ]

    assert kept == list(VALID)


@pytest.mark.parametrize("invalid", INVALID, ids=lambda invalid: invalid.claim)
def test_an_invalid_resource_is_refused_by_name_of_the_field(
    cluster: Cluster, invalid: Invalid
) -> None:
    said = refusal(
        cluster, "create", "--dry-run=server", "--filename=-", text=text_of(invalid.document)
    )

    assert invalid.is_answered_by(said), said


def test_the_largest_graph_is_not_too_costly_to_check(cluster: Cluster) -> None:
    assert "kind: PipelineTemplate" in stored(cluster, text_of(largest_template()))


def test_engine_arguments_are_kept_as_they_are(cluster: Cluster) -> None:
    (document,) = yaml.safe_load_all(stored(cluster, text_of(VALID["InferencePipeline"])))

    assert document["spec"]["stages"][0]["engineArgs"] == {
        "steps": 1,
        "nested": {"list": [1, "two", None]},
    }


def test_every_field_is_explained(published: dict[str, Any]) -> None:
    for kind in NAMES:
        version = definition_of(kind)["spec"]["versions"][0]
        shown = dict(nodes(published[kind]))
        for path, node in nodes(version["schema"]["openAPIV3Schema"]):
            if not path.startswith(".metadata") and "description" in node:
                assert shown[path]["description"], f"{kind}{path}"
            if path.startswith((".spec", ".status")) and "description" in node:
                assert shown[path]["description"] == node["description"], f"{kind}{path}"


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("ipl.spec.stages.engineArgs", "Arguments of the engine, which checks them"),
        ("ipl.status.stages.reason", "Why it is as it is, in one word."),
        ("ptpl.spec.edges.chunk.firstFrames", "Frames of the first chunk"),
        ("stg.spec.receives.mode", "`Full`: once, when the producer has ended."),
        ("srt.spec.resources.accelerator.resource", "Resource name of the device plugin"),
    ],
)
def test_kubectl_explains(cluster: Cluster, path: str, sentence: str) -> None:
    assert sentence in " ".join(cluster.call("explain", path).split())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/spec/stages/1/defaults/engineArgs", {"deep": {"down": 2}}),
        ("/spec/edges/2/mode", "Full"),
        ("/spec/stages/0/execution", "Diffusion"),
    ],
)
def test_a_template_stays_as_it_was_made(
    cluster: Cluster, template: dict[str, Any], path: str, value: object
) -> None:
    name = template["metadata"]["name"]
    patch = json.dumps([{"op": "add", "path": path, "value": value}])

    said = refusal(cluster, "patch", "ptpl", name, "--type=json", f"--patch={patch}")

    assert "spec: Forbidden: does not change; make a PipelineTemplate of another name" in said


def test_an_argument_deep_inside_a_template_stays_too(cluster: Cluster, namespace: str) -> None:
    document = json.loads(json.dumps(VALID["PipelineTemplate"]))
    document["metadata"]["name"] = namespace
    document["spec"]["stages"][0]["defaults"]["engineArgs"] = {"deep": {"down": [1, 2]}}
    cluster.apply(document)
    patch = [
        {"op": "replace", "path": "/spec/stages/0/defaults/engineArgs/deep/down/1", "value": 3}
    ]
    try:
        said = refusal(
            cluster, "patch", "ptpl", namespace, "--type=json", f"--patch={json.dumps(patch)}"
        )
    finally:
        cluster.call("delete", "pipelinetemplate", namespace)

    assert "spec: Forbidden: does not change" in said


def test_labels_of_a_template_may_change_and_it_may_be_applied_again(
    cluster: Cluster, template: dict[str, Any]
) -> None:
    name = template["metadata"]["name"]

    cluster.call("label", "ptpl", name, "team=speech")
    cluster.apply(template)

    assert cluster.get("ptpl", name)["metadata"]["labels"] == {"team": "speech"}


def test_a_stage_is_scaled_by_whoever_scales_things(cluster: Cluster, namespace: str) -> None:
    stage = in_namespace("Stage", namespace)
    cluster.apply(stage, namespace=namespace)
    where = f"--namespace={namespace}"
    assert cluster.get("stage", "table", where)["spec"]["replicas"] == 1

    status = json.dumps({"status": {"replicas": 2, "selector": "app=table"}})
    cluster.call(
        "patch", "stg", "table", where, "--subresource=status", "--type=merge", f"--patch={status}"
    )
    cluster.call("scale", "stg/table", "--replicas=3", where)
    raw = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/stages/table/scale"
    scale = json.loads(cluster.call("get", f"--raw={raw}"))

    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "app=table"}


def test_an_autoscaled_stage_takes_the_number_of_its_autoscaler(
    cluster: Cluster, namespace: str
) -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 5}
    cluster.apply(in_namespace("Stage", namespace, autoscaling=scaling), namespace=namespace)

    cluster.call("scale", "stg/table", "--replicas=4", f"--namespace={namespace}")
    cluster.apply(in_namespace("Stage", namespace, autoscaling=scaling), namespace=namespace)

    spec = cluster.get("stage", "table", f"--namespace={namespace}")["spec"]
    assert (spec["replicas"], spec["autoscaling"]["maxReplicas"]) == (4, 5)


def test_status_and_spec_are_written_apart(cluster: Cluster, namespace: str) -> None:
    where = f"--namespace={namespace}"
    pipeline = in_namespace("InferencePipeline", namespace)
    cluster.apply({**pipeline, "status": {"stagesReady": "9/9"}}, namespace=namespace)
    assert "status" not in cluster.get("ipl", "table", where)

    both = json.dumps({"status": {"stagesReady": "1/3"}, "spec": {"timeouts": {"request": "1s"}}})
    cluster.call(
        "patch", "ipl", "table", where, "--subresource=status", "--type=merge", f"--patch={both}"
    )

    found = cluster.get("ipl", "table", where)
    assert found["status"] == {"stagesReady": "1/3"}
    assert found["spec"]["timeouts"]["request"] == "90s"
    assert found["metadata"]["generation"] == 1


def test_each_gateway_writes_its_own_entry_and_no_other(cluster: Cluster, namespace: str) -> None:
    cluster.apply(in_namespace("InferencePipeline", namespace), namespace=namespace)

    for name, routable in (("gw-a", ["r1"]), ("gw-b", ["r1", "r2"]), ("gw-a", ["r2"])):
        _apply_status(
            cluster, namespace, name, {"gateways": [{"name": name, "routable": routable}]}
        )
    conditions = [{**CONDITION, "type": kind} for kind in ("Ready", "Reconciling", "Stalled")]
    _apply_status(cluster, namespace, "operator", {"conditions": conditions})

    status = cluster.get("ipl", "table", f"--namespace={namespace}")["status"]
    gateways = {each["name"]: each["routable"] for each in status["gateways"]}
    assert gateways == {"gw-a": ["r2"], "gw-b": ["r1", "r2"]}
    assert [each["type"] for each in status["conditions"]] == ["Ready", "Reconciling", "Stalled"]


def _apply_status(cluster: Cluster, namespace: str, manager: str, status: dict[str, Any]) -> None:
    document = {
        **{key: VALID["InferencePipeline"][key] for key in ("apiVersion", "kind", "metadata")},
        "status": status,
    }
    cluster.call(
        "apply",
        "--server-side",
        "--subresource=status",
        f"--field-manager={manager}",
        f"--namespace={namespace}",
        "--filename=-",
        text=text_of(document),
    )


def test_two_people_own_the_stages_that_each_of_them_wrote(
    cluster: Cluster, namespace: str
) -> None:
    for manager, stage in (("anna", "thinker"), ("ben", "talker"), ("anna", "hearer")):
        document = in_namespace(
            "InferencePipeline", namespace, stages=[{"name": stage, "replicas": 2}]
        )
        cluster.call(
            "apply",
            "--server-side",
            f"--field-manager={manager}",
            "--filename=-",
            text=text_of(document),
        )

    stages = cluster.get("ipl", "table", f"--namespace={namespace}")["spec"]["stages"]
    assert sorted(stage["name"] for stage in stages) == ["hearer", "talker"]


def test_lists_of_resources_answer_the_first_questions(cluster: Cluster, namespace: str) -> None:
    where = f"--namespace={namespace}"
    cluster.apply(in_namespace("InferencePipeline", namespace), namespace=namespace)
    cluster.apply(in_namespace("Stage", namespace), namespace=namespace)
    ready = {**CONDITION, "type": "Ready", "status": "False", "reason": "ModelLoading"}
    _apply_status(
        cluster,
        namespace,
        "operator",
        {"conditions": [ready], "stagesReady": "2/3", "currentRevision": "abc", "url": "http://gw"},
    )

    pipelines = cluster.call("get", "ipl", where).splitlines()
    stages = cluster.call("get", "stg", where).splitlines()

    assert pipelines[0].split() == ["NAME", "READY", "REASON", "STAGES", "REVISION", "URL", "AGE"]
    assert pipelines[1].split()[:6] == ["table", "False", "ModelLoading", "2/3", "abc", "http://gw"]
    assert stages[0].split() == [
        *("NAME", "READY", "REASON", "DESIRED", "REPLICAS", "REVISION", "ENGINE", "AGE")
    ]
    assert "simulated" in stages[1]
    everything = cluster.call("get", CATEGORY, where)
    assert f"inferencepipeline.{GROUP}/table" in everything
    assert f"stage.{GROUP}/table" in everything


def test_pipelines_are_found_by_their_template(cluster: Cluster, namespace: str) -> None:
    cluster.apply(in_namespace("InferencePipeline", namespace), namespace=namespace)

    def named(template: str) -> list[str]:
        selector = f"--field-selector=spec.template.name={template}"
        items = cluster.get("ipl", f"--namespace={namespace}", selector)["items"]
        return [item["metadata"]["name"] for item in items]

    assert named("table") == ["table"]
    assert named("other") == []


def test_a_refusal_changes_nothing(cluster: Cluster, namespace: str) -> None:
    where = f"--namespace={namespace}"
    cluster.apply(in_namespace("InferencePipeline", namespace), namespace=namespace)
    before = cluster.get("ipl", "table", where)["metadata"]["resourceVersion"]

    with pytest.raises(SetupError, match="no time at all"):
        cluster.apply(
            in_namespace("InferencePipeline", namespace, timeouts={"request": "0s"}),
            namespace=namespace,
        )

    assert cluster.get("ipl", "table", where)["metadata"]["resourceVersion"] == before
