"""An image is on the node without a copy of it, and what containers do to it stays with them."""

from pathlib import Path
from typing import Any, Final

import pytest

from cluster.laboratory import images
from cluster.laboratory.access import Cluster
from cluster.laboratory.building import Report
from cluster.laboratory.sharing import can_share

TAG: Final = "omnistage.local/shared:1"
RECIPE: Final = f"""FROM {images.BASE}
RUN mkdir /kept /gone /replaced && touch /gone/file /replaced/old && echo as-built > /kept/word
RUN rm -r /gone /replaced && mkdir /replaced && touch /replaced/new
CMD ["sleep", "infinity"]
"""


@pytest.fixture
def image(cluster: Cluster, report: Report, tmp_path: Path) -> str:
    """An image of some layers, in which things of lower ones are deleted and replaced."""
    if cluster.instance is None or not can_share(cluster.instance):
        pytest.skip("this node has its images to itself")
    (tmp_path / "Dockerfile").write_text(RECIPE)
    images.build(tmp_path / "Dockerfile", tmp_path, TAG, report=report)
    cluster.load_image(TAG)
    return TAG


def pod(name: str, image: str) -> dict[str, Any]:
    """A pod that may write to its root."""
    container = {"name": "main", "image": image, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def folders(cluster: Cluster) -> list[Path]:
    """What is in each snapshot of the node."""
    assert cluster.instance is not None
    return list((cluster.instance.state / "var/lib/containerd").glob("*overlayfs/snapshots/*/fs"))


def test_a_container_sees_the_builders_layers_and_changes_none(
    cluster: Cluster, namespace: str, image: str
) -> None:
    here = f"--namespace={namespace}"
    look = "ls -d /gone 2>/dev/null; ls /replaced; cat /kept/word"
    cluster.apply(pod("one", image), pod("other", image), namespace=namespace)
    cluster.wait("condition=Ready", "pod/one", "pod/other", here)

    cluster.call("exec", "one", here, "--", "sh", "-c", "echo changed > /kept/word; rm /replaced/*")

    assert cluster.call("exec", "other", here, "--", "sh", "-c", look) == "new\nas-built\n"
    assert cluster.call("exec", "one", here, "--", "sh", "-c", look) == "changed\n"


def test_layers_that_the_node_has_are_not_given_again(cluster: Cluster, image: str) -> None:
    before = folders(cluster)

    cluster.load_image(image)

    assert sorted(folders(cluster)) == sorted(before)
    assert sum(folder.is_symlink() for folder in before) >= 3, "base and two steps"
