"""The chart as helm renders it: parsed objects, found by kind and name.

helm is the one that the laboratory cluster builds from source, and the one on the PATH where there is
no Go to build it with.
"""

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from cluster.laboratory.building import program_built
from cluster.laboratory.commands import run
from omnistage_common.errors import MissingDependency

__all__ = ["CHART", "ROOT", "Manifest", "Rendered", "helm", "render", "rendered_text"]

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "charts" / "omnistage"

Manifest = dict[str, Any]


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """What a release consists of."""

    objects: tuple[Manifest, ...]

    def of(self, kind: str) -> dict[str, Manifest]:
        """Name -> object, of those of a kind."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    def one(self, kind: str, name: str) -> Manifest:
        """The one object of that kind and name."""
        return self.of(kind)[name]

    def pods(self) -> Iterator[Manifest]:
        """The pod templates of all deployments."""
        for deployment in self.of("Deployment").values():
            yield deployment["spec"]["template"]

    def container(self, deployment: str) -> Manifest:
        """The one container of a deployment's pods."""
        (container,) = self.one("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
        found: Manifest = container
        return found


@cache
def helm() -> Path:
    """The program.

    Raises:
        MissingDependency: It can neither be built nor found.
    """
    try:
        return program_built("helm", lambda _: None)
    except MissingDependency:
        found = shutil.which("helm")
        if found is None:
            raise
        return Path(found)


def rendered_text(
    values: Manifest | None = None,
    *,
    release: str = "omnistage",
    namespace: str = "omnistage-system",
    apis: tuple[str, ...] = (),
) -> str:
    """The chart as YAML.

    Args:
        values: What the release is told.
        release: Its name.
        namespace: Where it goes.
        apis: Groups and versions that the cluster has besides its own.

    Raises:
        SetupError: helm refuses; the message has its words.
    """
    return run(
        helm(),
        "template",
        release,
        CHART,
        f"--namespace={namespace}",
        "--kube-version=1.34.0",
        *(f"--api-versions={api}" for api in apis),
        "--values=-",
        text=msgspec.json.encode(values or {}).decode(),
    )


def render(
    values: Manifest | None = None,
    *,
    release: str = "omnistage",
    namespace: str = "omnistage-system",
    apis: tuple[str, ...] = (),
) -> Rendered:
    """The chart as objects; see `rendered_text`."""
    text = rendered_text(values, release=release, namespace=namespace, apis=apis)
    documents = yaml.load_all(text, Loader=yaml.CSafeLoader)
    return Rendered(objects=tuple(each for each in documents if each is not None))
