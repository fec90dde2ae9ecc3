"""The chart on a real cluster: installed, upgraded, rolled back and gone again.

One release, told twice as much as it needs, runs the real images on the real node. Another one, of no
pods, is enough where only objects matter.
"""

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from msgspec import Struct

from cluster.definitions import CHART, NAMES, added, existing
from cluster.laboratory.access import Cluster
from cluster.products import IMAGE_VALUES, ROOT, provide_image
from omnistage_common.errors import SetupError

NO_PODS: Final = {"operator": {"replicas": 0}, "gateway": {"replicas": 0}}
RUNTIME: Final = {
    "apiVersion": "omnistage.io/v1alpha1",
    "kind": "StageRuntime",
    "spec": {"engine": "simulated"},
}
BUILD_SECONDS: Final = 15 * 60.0
OF_EVERY_NAMESPACE: Final = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
REPORTS: Final = {"events", "events.events.k8s.io"}
"""Kinds that say what happened; they go by themselves."""


class Release(Struct, frozen=True, kw_only=True):
    """One release of the chart, in a namespace of its own."""

    cluster: Cluster
    name: str
    namespace: str
    definitions_were_there: bool = False
    """Those of other tests, or of the cluster's owner; somebody else applied them."""

    def helm(self, *arguments: str) -> str:
        """Runs helm in the namespace of the release."""
        return self.cluster.call_helm(*arguments, f"--namespace={self.namespace}", seconds=300)

    def install(self, values: dict[str, Any], *options: str) -> None:
        """Puts the release into the cluster."""
        ownership = ("--take-ownership",) if self.definitions_were_there else ()
        told = f"--set-json={json.dumps(values)}"
        self.change("install", self.name, str(CHART), told, *ownership, *options)

    def change(self, *arguments: str) -> None:
        """Installs, upgrades or rolls back."""
        self.helm(*arguments, *(("--force-conflicts",) if self.definitions_were_there else ()))

    def objects(self, manifest: str) -> set[str]:
        """Kind and name of those objects of a manifest that are in the cluster."""
        names = self.cluster.call(
            "get", "--filename=-", "--ignore-not-found", "--output=name", text=manifest
        )
        return set(names.split())


@pytest.fixture(scope="module", autouse=True)
def definitions(cluster: Cluster) -> Iterator[None]:
    """Definitions that were not there before go in the end; uninstalling keeps them."""
    with added(cluster):
        yield


@contextmanager
def strict_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace that takes no pod below the level `restricted`."""
    name = f"chart-{uuid.uuid4().hex[:10]}"
    level = "pod-security.kubernetes.io/enforce"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": {level: "restricted"}},
        }
    )
    try:
        yield name
    finally:
        cluster.call("delete", "namespace", name, "--wait=false")


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Release]:
    """A release that is not installed yet, and is gone afterwards."""
    with strict_namespace(cluster) as namespace:
        one = Release(
            cluster=cluster,
            name=f"r{uuid.uuid4().hex[:6]}",
            namespace=namespace,
            definitions_were_there=bool(existing(cluster)),
        )
        yield one
        one.helm("uninstall", one.name, "--ignore-not-found", "--wait")


@pytest.fixture
def runtime(release: Release) -> Iterator[str]:
    """The name of an object of ours that somebody made."""
    release.install(NO_PODS)
    name = f"test-{uuid.uuid4().hex[:10]}"
    release.cluster.wait("condition=Established", *(f"crd/{each}" for each in NAMES))
    release.cluster.apply({**RUNTIME, "metadata": {"name": name}})
    yield name
    release.cluster.call("delete", "stageruntime", name)


def changed_chart(folder: Path) -> Path:
    """The next version of the chart: `kubectl get stages` has one more column."""
    chart = folder / "omnistage"
    shutil.copytree(CHART, chart)
    path = chart / "definitions" / "stages.yaml"
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    column = {"name": "Trial", "type": "string", "jsonPath": ".metadata.name"}
    definition["spec"]["versions"][0].setdefault("additionalPrinterColumns", []).append(column)
    path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    return chart


def columns(cluster: Cluster) -> set[str]:
    """What `kubectl get stages` shows."""
    version = cluster.get("crd", "stages.omnistage.io")["spec"]["versions"][0]
    return {column["name"] for column in version.get("additionalPrinterColumns", [])}


def test_an_upgrade_changes_a_definition_and_a_rollback_changes_it_back(
    release: Release, runtime: str, tmp_path: Path
) -> None:
    cluster = release.cluster
    before = columns(cluster)

    release.change("upgrade", release.name, str(changed_chart(tmp_path)), "--reuse-values")
    upgraded = columns(cluster)
    release.change("rollback", release.name)

    assert upgraded == before | {"Trial"}
    assert columns(cluster) == before
    assert cluster.get("stageruntime", runtime)["spec"]["engine"] == "simulated"


def test_uninstalling_leaves_definitions_and_what_people_made(
    release: Release, runtime: str
) -> None:
    manifest = release.helm("get", "manifest", release.name)
    assert len(release.objects(manifest)) > len(NAMES)

    release.helm("uninstall", release.name, "--wait")

    kept = {f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in NAMES}
    assert release.objects(manifest) == kept
    assert release.cluster.get("stageruntime", runtime)


def test_a_second_release_stands_beside_the_first(release: Release) -> None:
    release.install(NO_PODS)

    with strict_namespace(release.cluster) as elsewhere:
        second = Release(cluster=release.cluster, name=release.name, namespace=elsewhere)
        values = {**NO_PODS, "definitions": {"install": False}, "watchNamespaces": [elsewhere]}
        second.helm("install", second.name, str(CHART), f"--set-json={json.dumps(values)}")
        second.helm("uninstall", second.name, "--wait")

    assert release.objects(release.helm("get", "manifest", release.name))


def test_a_value_that_is_none_is_refused_before_anything_is_changed(release: Release) -> None:
    with pytest.raises(SetupError, match="additional properties 'replica' not allowed"):
        release.install({"gateway": {"replica": 3}})

    assert release.helm("list", "--short") == ""


def test_plain_manifests_are_taken_by_the_server(release: Release) -> None:
    release.cluster.call(
        "apply",
        "--server-side",
        "--dry-run=server",
        "--filename=-",
        text=plain_manifests_in(release.namespace),
    )


def plain_manifests_in(namespace: str) -> str:
    """The manifests for people without helm, for a namespace that is there."""
    text = (ROOT / "deploy" / "manifests" / "omnistage.yaml").read_text(encoding="utf-8")
    return text.replace("omnistage-system", namespace)


def test_the_operator_may_do_its_work_and_read_no_secret(release: Release) -> None:
    release.install(NO_PODS)
    cluster = release.cluster

    def may(component: str, verb: str, resource: str) -> bool:
        user = f"system:serviceaccount:{release.namespace}:{release.name}-{component}"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes(verb, resource)},
        }
        text = msgspec.json.encode(review).decode()
        said = cluster.call("create", "--filename=-", "--output=json", text=text)
        return bool(json.loads(said)["status"]["allowed"])

    assert may("operator", "patch", "deployments.apps")
    assert may("operator", "patch", "inferencepipelines.omnistage.io/status")
    assert may("gateway", "watch", "endpointslices.discovery.k8s.io")
    assert not may("operator", "get", "secrets")
    assert not may("gateway", "get", "secrets")
    assert not may("gateway", "patch", "deployments.apps")
    assert not may("gateway", "list", "pods")


def attributes(verb: str, resource: str) -> dict[str, str]:
    """What somebody wants to do in the namespace `default`; `plural.group/subresource`."""
    whole, _, subresource = resource.partition("/")
    plural, _, group = whole.partition(".")
    return {
        "namespace": "default",
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": subresource,
    }


def remaining(cluster: Cluster, namespace: str) -> set[str]:
    """Everything in a namespace but what each has by itself."""
    kinds = cluster.call("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    asked = ",".join(kind for kind in kinds if kind not in REPORTS)
    names = cluster.call("get", asked, f"--namespace={namespace}", "--output=name").split()
    return set(names) - OF_EVERY_NAMESPACE


@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize("watched", [[], ["default"]], ids=["everywhere", "one-namespace"])
def test_a_release_runs_in_a_strict_namespace_and_leaves_it_empty(
    release: Release, watched: list[str]
) -> None:
    cluster = release.cluster
    for component in ("operator", "gateway"):
        provide_image(cluster, component)

    release.install({**IMAGE_VALUES, "watchNamespaces": watched}, "--wait", "--timeout=3m")

    here = f"--namespace={release.namespace}"
    for deployment in cluster.get("deployments", here)["items"]:
        assert deployment["status"]["readyReplicas"] == 2
    release.helm("uninstall", release.name, "--wait", "--timeout=3m")
    cluster.wait("delete", "pod", "--all", here, seconds=180)
    assert remaining(cluster, release.namespace) == set()
