"""A release has what it should, under any name, in any namespace, whatever it is told."""

import copy
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import yaml

from cluster.laboratory.commands import run
from omnistage_common.errors import SetupError
from unit.charts.rendering import CHART, ROOT, Manifest, Rendered, helm, render

GATEWAY_API: Final = "gateway.networking.k8s.io/v1"
PROMETHEUS: Final = "monitoring.coreos.com/v1"
EVERYTHING: Final[Manifest] = {
    "gateway": {
        "autoscaling": {"enabled": True},
        "route": {"enabled": True, "parentRefs": [{"name": "front"}]},
    },
}
"""What makes a release have every object it can have."""
OF_THE_CLUSTER: Final = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
GATEWAY_LEAVES_AFTER: Final = 3.0
"""Seconds after a stop signal that a gateway lets requests in, unless told otherwise."""
LONGEST_RELEASE: Final = 53
LONGEST_LABEL: Final = 63


@pytest.fixture(scope="module")
def release() -> Rendered:
    """A release that is told nothing."""
    return render()


@pytest.fixture(scope="module", params=[8, LONGEST_RELEASE])
def random_name(request: pytest.FixtureRequest) -> str:
    """A name that nobody wrote down anywhere."""
    return "".join(Random().choices(string.ascii_lowercase, k=request.param))  # noqa: S311


def text_values(value: Any) -> Iterator[str]:
    """Every string within a value."""
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from text_values(each)
        case list():
            for each in value:
                yield from text_values(each)


def test_the_linter_has_nothing_to_say() -> None:
    said = run(helm(), "lint", "--strict", CHART)

    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


def test_the_chart_has_the_version_of_the_project(release: Rendered) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert f'\nversion = "{chart["version"]}"\n' in project
    assert chart["appVersion"] == chart["version"]
    for dockerfile in ("Dockerfile.gateway", "Dockerfile.stage", "operator/Dockerfile"):
        text = (ROOT / dockerfile).read_text(encoding="utf-8")
        assert f"ARG VERSION={chart['appVersion']}\n" in text
    assert {pod["spec"]["containers"][0]["image"] for pod in release.pods()} == {
        f"omnistage-gateway:{chart['version']}",
        f"omnistage-operator:{chart['version']}",
    }


def test_any_release_name_and_namespace_will_do(random_name: str) -> None:
    rendered = render(
        EVERYTHING, release=random_name, namespace="elsewhere", apis=(GATEWAY_API, PROMETHEUS)
    )

    for each in rendered.objects:
        name, kind = each["metadata"]["name"], each["kind"]
        if kind == "CustomResourceDefinition":
            continue
        if kind in OF_THE_CLUSTER:
            assert name.startswith(f"{random_name}:elsewhere:"), kind
        else:
            assert name.startswith(f"{random_name}-"), kind
            assert len(name) <= LONGEST_LABEL, kind
            assert each["metadata"]["namespace"] == "elsewhere", kind
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == random_name
        assert all(len(value) <= LONGEST_LABEL for value in labels.values())
        assert not any("omnistage-system" in text for text in text_values(each))


def test_whatever_is_referred_to_is_there(random_name: str) -> None:
    rendered = render(EVERYTHING, release=random_name, apis=(GATEWAY_API, PROMETHEUS))
    pods = [pod["metadata"]["labels"].items() for pod in rendered.pods()]

    def selects_pods(selector: dict[str, str]) -> bool:
        return any(selector.items() <= labels for labels in pods)

    for deployment in rendered.of("Deployment").values():
        template = deployment["spec"]["template"]
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert template["spec"]["serviceAccountName"] in rendered.of("ServiceAccount")
    for service in rendered.of("Service").values():
        assert selects_pods(service["spec"]["selector"])
    for budget in rendered.of("PodDisruptionBudget").values():
        assert selects_pods(budget["spec"]["selector"]["matchLabels"])
    for policy in rendered.of("NetworkPolicy").values():
        assert selects_pods(policy["spec"]["podSelector"]["matchLabels"])
    for scaler in rendered.of("HorizontalPodAutoscaler").values():
        assert scaler["spec"]["scaleTargetRef"]["name"] in rendered.of("Deployment")
    for route in rendered.of("HTTPRoute").values():
        (backend,) = route["spec"]["rules"][0]["backendRefs"]
        assert backend["name"] in rendered.of("Service")
    for kind in ("Role", "ClusterRole"):
        for binding in rendered.of(f"{kind}Binding").values():
            assert binding["roleRef"]["name"] in rendered.of(kind)
            (subject,) = binding["subjects"]
            assert subject["name"] in rendered.of("ServiceAccount")


def test_two_releases_of_one_name_share_nothing_of_the_cluster_but_definitions() -> None:
    names = [
        {
            (each["kind"], each["metadata"]["name"])
            for each in render(namespace=namespace).objects
            if each["kind"] in OF_THE_CLUSTER
        }
        for namespace in ("here", "there")
    ]

    assert {kind for kind, _ in names[0] & names[1]} == {"CustomResourceDefinition"}


def test_every_pod_meets_the_strictest_level(release: Rendered) -> None:
    for pod in release.pods():
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert all("emptyDir" in volume for volume in spec["volumes"])


def test_definitions_are_those_of_the_folder_and_stay_when_the_release_goes(
    release: Rendered,
) -> None:
    files = sorted((CHART / "definitions").glob("*.yaml"))
    rendered = copy.deepcopy(release.of("CustomResourceDefinition"))

    assert len(rendered) == len(files) > 0
    for file in files:
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
        definition = rendered[written["metadata"]["name"]]
        annotations = definition["metadata"].pop("annotations")
        assert annotations["helm.sh/resource-policy"] == "keep"
        assert definition["metadata"].pop("labels")
        assert definition == written


def test_a_release_can_do_without_definitions() -> None:
    assert not render({"definitions": {"install": False}}).of("CustomResourceDefinition")


def test_a_gateway_has_longer_to_finish_than_a_request_may_take_by_default(
    release: Rendered,
) -> None:
    spec = release.one("Deployment", "omnistage-gateway")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    schema = yaml.safe_load((CHART / "definitions/inferencepipelines.yaml").read_text("utf-8"))
    version = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    request = version["properties"]["timeouts"]["properties"]["request"]["default"]

    leaving = pause + GATEWAY_LEAVES_AFTER
    assert spec["terminationGracePeriodSeconds"] > leaving + float(request.removesuffix("s"))


def test_shared_memory_has_room_for_what_the_gateway_puts_there() -> None:
    rendered = render({"gateway": {"sharedMemoryMiB": 100}})
    spec = rendered.one("Deployment", "omnistage-gateway")["spec"]["template"]["spec"]

    assert "--slab-mib=100" in spec["containers"][0]["args"]
    volumes = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"]}
    assert volumes["shared-memory"] == {"medium": "Memory", "sizeLimit": "164Mi"}


def test_a_scaled_gateway_has_no_fixed_number_of_pods() -> None:
    fixed = render({"gateway": {"replicas": 3}})
    scaled = render({"gateway": {"autoscaling": {"enabled": True}}})

    assert fixed.one("Deployment", "omnistage-gateway")["spec"]["replicas"] == 3
    assert not fixed.of("HorizontalPodAutoscaler")
    assert "replicas" not in scaled.one("Deployment", "omnistage-gateway")["spec"]
    assert scaled.of("HorizontalPodAutoscaler")


@pytest.mark.parametrize("component", ["gateway", "operator"])
def test_people_say_where_pods_run_and_what_they_carry(component: str) -> None:
    told: Manifest = {
        "podLabels": {"team": "speech"},
        "podAnnotations": {"note": "yes"},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "serving",
    }
    more: Manifest = {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "extraArgs": ["--log-level=DEBUG"],
        "resources": {"limits": {"memory": "2Gi"}},
    }
    values = {component: {**told, **more}, "images": {"pullSecrets": [{"name": "login"}]}}
    rendered = render(values)

    pod = rendered.one("Deployment", f"omnistage-{component}")["spec"]["template"]
    container = rendered.container(f"omnistage-{component}")
    for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert pod["spec"][key] == told[key]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "login"}]
    assert pod["metadata"]["labels"]["team"] == "speech"
    assert pod["metadata"]["annotations"] == {"note": "yes"}
    assert more["extraEnv"][0] in container["env"]
    assert container["args"][-1] == "--log-level=DEBUG"
    assert container["resources"]["limits"] == {"memory": "2Gi"}


def test_images_come_from_where_they_are_said_to_be() -> None:
    digest = f"sha256:{'0' * 64}"
    rendered = render(
        {
            "images": {"registry": "registry.example/team/", "tag": "7", "pullPolicy": "Always"},
            "stages": {"engineImages": {"vllm": "registry.example/vllm:1"}},
            "operator": {"image": {"digest": digest}},
            "gateway": {"image": {"repository": "gw", "tag": "8"}},
        }
    )
    operator = rendered.container("omnistage-operator")

    assert rendered.container("omnistage-gateway")["image"] == "registry.example/team/gw:8"
    assert operator["image"] == f"registry.example/team/omnistage-operator@{digest}"
    assert operator["imagePullPolicy"] == "Always"
    assert {
        "--stage-image=registry.example/team/omnistage-stage:7",
        "--engine-image=vllm=registry.example/vllm:1",
        "--image-pull-policy=Always",
    } <= set(operator["args"])


def test_a_route_is_made_only_where_the_cluster_knows_routes() -> None:
    values = {"gateway": {"route": {"enabled": True, "parentRefs": [{"name": "front"}]}}}

    assert render(values, apis=(GATEWAY_API,)).of("HTTPRoute")
    with pytest.raises(SetupError, match="this cluster has no Gateway API"):
        render(values)
    with pytest.raises(SetupError, match=r"parentRefs: name the Gateway"):
        render({"gateway": {"route": {"enabled": True}}}, apis=(GATEWAY_API,))


@pytest.mark.parametrize(
    ("create", "apis", "made"),
    [
        ("Auto", (PROMETHEUS,), 3),
        ("Auto", (), 0),
        ("Always", (), 3),
        ("Never", (PROMETHEUS,), 0),
    ],
)
def test_monitors_are_made_where_they_are_understood(
    create: str, apis: tuple[str, ...], made: int
) -> None:
    rendered = render({"podMonitors": {"create": create}}, apis=apis)

    assert len(rendered.of("PodMonitor")) == made


def test_monitors_name_ports_that_the_pods_have() -> None:
    rendered = render(apis=(PROMETHEUS,))

    for component in ("gateway", "operator"):
        monitor = rendered.one("PodMonitor", f"omnistage-{component}")
        ports = {port["name"] for port in rendered.container(f"omnistage-{component}")["ports"]}
        assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports


def test_network_policies_can_be_left_out_and_closed() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "front"}}}
    closed = render({"networkPolicies": {"requestsFrom": [peer], "metricsFrom": [peer]}})
    gateway = closed.one("NetworkPolicy", "omnistage-gateway")["spec"]

    assert not render({"networkPolicies": {"enabled": False}}).of("NetworkPolicy")
    assert gateway["ingress"][0]["from"] == [peer, peer]
    assert all("from" in rule for rule in gateway["ingress"])


def test_nothing_else_is_in_the_packaged_chart(tmp_path: Path) -> None:
    run(helm(), "package", CHART, f"--destination={tmp_path}")

    (archive,) = tmp_path.iterdir()
    listed = run("tar", "--list", f"--file={archive}").splitlines()
    folders = {Path(name).parts[1] for name in listed}
    assert folders == {
        "Chart.yaml",
        "values.yaml",
        "values.schema.json",
        "templates",
        "dashboards",
        "definitions",
    }


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ({}, "http://omnistage-gateway.omnistage-system:8000"),
        ({"service": {"port": 80}}, "http://omnistage-gateway.omnistage-system:80"),
        ({"url": "https://models.example"}, "https://models.example"),
    ],
)
def test_pipelines_say_where_clients_reach_them(gateway: Manifest, url: str) -> None:
    operator = render({"gateway": gateway}).container("omnistage-operator")

    assert f"--gateway-url={url}" in operator["args"]


@pytest.mark.parametrize("component", ["gateway", "operator"])
def test_a_component_knows_every_option_that_the_chart_gives_it(component: str) -> None:
    values = {
        "watchNamespaces": ["speech"],
        "images": {"pullSecrets": [{"name": "login"}]},
        "stages": {"engineImages": {"vllm": "registry.example/vllm:1"}},
    }
    arguments = render(values).container(f"omnistage-{component}")["args"]
    options = {argument.partition("=")[0] for argument in arguments}

    usage = run(sys.executable, "-m", f"omnistage_{component}", "--help")

    assert {option for option in options if f"{option} " not in usage.replace(",", " ")} == set()
