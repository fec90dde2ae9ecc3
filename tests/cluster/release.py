"""The product, installed in a cluster as its users install it, for the tests of what it does there."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from cluster.definitions import CHART, added
from cluster.laboratory.access import Cluster
from cluster.products import IMAGE_VALUES, provide_image

__all__ = ["Product", "installed", "pipeline_objects"]

_QUICK: Final = {
    # Three small gateways and operators have to share two cores with all else.
    "gateway": {"resources": {"requests": {"cpu": "50m", "memory": "256Mi"}}},
    "operator": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
}


class Product(Struct, frozen=True, kw_only=True):
    """One release of the chart, and one namespace for pipelines."""

    cluster: Cluster
    name: str
    namespace: str
    """Of operator and gateways."""
    models: str
    """Namespace for pipelines."""

    @property
    def url(self) -> str:
        """Where clients reach the gateways: the address of their Service."""
        service = self.cluster.get(
            "service", f"{self.name}-gateway", f"--namespace={self.namespace}"
        )
        return f"http://{service['spec']['clusterIP']}:8000"

    def apply(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Applies pipelines and what they are made of."""
        self.cluster.apply(*objects, namespace=self.models)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` prints of the pipelines' namespace, as a value."""
        return self.cluster.get(*arguments, f"--namespace={self.models}")

    def call(self, *arguments: str, text: str | None = None) -> str:
        """Runs kubectl in the pipelines' namespace."""
        return self.cluster.call(*arguments, f"--namespace={self.models}", text=text)

    def wait(self, condition: str, *subjects: str, seconds: int = 60) -> None:
        """Waits for something in the pipelines' namespace."""
        self.cluster.wait(condition, *subjects, f"--namespace={self.models}", seconds=seconds)

    def wait_ready(self, pipeline: str, *, seconds: int = 60) -> None:
        """Waits until the pipeline's spec as it is now is served."""
        generation = self.get("ipl", pipeline)["metadata"]["generation"]
        observed = f"jsonpath={{.status.observedGeneration}}={generation}"
        self.wait(observed, f"ipl/{pipeline}", seconds=seconds)
        self.wait("condition=Ready", f"ipl/{pipeline}", seconds=seconds)

    def wait_gone(self, *subjects: str, seconds: int = 60) -> None:
        """Waits until objects of the pipelines' namespace are gone."""
        self.wait("delete", *subjects, seconds=seconds)

    def pods(self, stage: str, revision: str | None = None) -> dict[str, str]:
        """Name -> uid of the pods of a `Stage` that are not on their way out.

        Args:
            stage: Its name.
            revision: Of which of its revisions; None for all.
        """
        chosen = "" if revision is None else f",omnistage.io/revision={revision}"
        found = self.get("pods", f"--selector=omnistage.io/stage={stage}{chosen}")["items"]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
        }

    def patch(self, pipeline: str, spec: Mapping[str, Any]) -> None:
        """Changes a pipeline's spec, as `kubectl patch --type=merge` does."""
        text = json.dumps({"spec": spec})
        self.call("patch", "ipl", pipeline, "--type=merge", f"--patch={text}")


@contextmanager
def installed(cluster: Cluster, values: Mapping[str, Any] | None = None) -> Iterator[Product]:
    """The product, until the end of the block; then nothing of it is left.

    Args:
        cluster: Where.
        values: Further values of the chart.
    """
    for component in ("operator", "gateway", "stage"):
        provide_image(cluster, component)
    mark = uuid.uuid4().hex[:6]
    product = Product(
        cluster=cluster, name=f"r{mark}", namespace=f"omnistage-{mark}", models=f"models-{mark}"
    )
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply(
        *(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": name, "labels": restricted},
            }
            for name in (product.namespace, product.models)
        )
    )
    try:
        with added(cluster) as definitions:
            cluster.call_helm(
                *("install", product.name, str(CHART), f"--namespace={product.namespace}"),
                *("--wait", "--timeout=2m"),
                *(("--take-ownership", "--force-conflicts") if definitions else ()),
                f"--set-json={json.dumps(_merged(_merged(IMAGE_VALUES, _QUICK), values or {}))}",
                seconds=150,
            )
            yield product
            cluster.call("delete", "namespace", product.models, seconds=120)
    finally:
        _uninstall(product)


def _uninstall(product: Product) -> None:
    cluster = product.cluster
    cluster.call("delete", "namespace", product.models, "--ignore-not-found", seconds=120)
    cluster.call_helm(
        *("uninstall", product.name, f"--namespace={product.namespace}", "--ignore-not-found"),
        "--wait",
        seconds=150,
    )
    cluster.call("delete", "namespace", product.namespace, "--wait=false")


def _merged(below: Any, above: Any) -> Any:
    """Values with others over them, mapping by mapping."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{name: _merged(below.get(name), each) for name, each in above.items()}}


def pipeline_objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of pipelines."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
