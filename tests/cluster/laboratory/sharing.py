"""An image on the node without a copy: its layers are the builder's own, where they lie.

To import an image writes it three times: as an archive, as content, and unpacked. That is no matter
for a small one, and minutes and three times the space for one with an engine of 5 GB in it. Builder
and node are on one machine and keep layers in the same form, as folders that the kernel stacks. So
each layer becomes a snapshot of containerd that leads to the builder's folder, and the image is given
as what describes it alone. Nobody writes into either: a container's changes go into a folder above.

The builder's layers have to stay while the cluster runs, which they do.
"""

import hashlib
import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cluster.laboratory.archives import write_description
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import Instance
from omnistage_common.errors import SetupError

__all__ = ["can_share", "containerd", "share"]

_CONTAINERD: Final = Path("var", "lib", "containerd")
"""In the state folder, where the node sees it as `/var/lib/containerd`."""
_SNAPSHOTS: Final = "io.containerd.snapshotter.v1.overlayfs"


def can_share(instance: Instance) -> bool:
    """Whether the node's snapshots can be reached: not where it keeps them in memory."""
    return (instance.state / _CONTAINERD / _SNAPSHOTS).is_dir()


def containerd(instance: Instance, *arguments: str | Path, seconds: float = 60.0) -> str:
    """Runs `ctr` within the node and returns what it says."""
    assert instance.node is not None
    enter = ("--target", str(instance.node.pid), "--mount", "--net", "--pid", "--")
    command = (program("nsenter"), *enter, "ctr", "--namespace=k8s.io")
    return run(*command, *arguments, seconds=seconds)


def share(instance: Instance, tag: str, image: dict[str, Any], storage: Path) -> None:
    """Gives an image to the node.

    Args:
        instance: The cluster.
        tag: Full name of the image.
        image: What `buildah inspect --type=image` says of it.
        storage: The builder's, of its driver `overlay`; the node sees it too.

    Raises:
        SetupError: The storage has not the layers that the image says it has.
    """
    known = {line.split()[0] for line in containerd(instance, "snapshots", "list").splitlines()}
    digests = json.loads(image["Config"])["rootfs"]["diff_ids"]
    layers = list(_layers(storage, image["FromImageID"]))[::-1]
    if [digest for digest, _ in layers] != digests:
        raise SetupError(f"the layers of {tag} are not those that {storage} has for it")
    below = ""
    for digest, folder in layers:
        # Names of snapshots, as the image specification has them: a chain of digests.
        chain = f"sha256:{_sha256(f'{below} {digest}')}" if below else digest
        if chain not in known:
            _adopt(instance, folder, chain, below)
        below = chain
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "image.tar"
        write_description(archive, tag, image["Manifest"].encode(), image["Config"].encode())
        containerd(instance, "images", "import", "--no-unpack", archive)


def _layers(storage: Path, image: str) -> Iterator[tuple[str, Path]]:
    """Digest and folder of each layer of an image, the uppermost first."""
    images = json.loads((storage / "overlay-images" / "images.json").read_bytes())
    known = json.loads((storage / "overlay-layers" / "layers.json").read_bytes())
    layers = {layer["id"]: layer for layer in known}
    (name,) = (each["layer"] for each in images if each["id"] == image)
    while name:
        yield layers[name]["diff-digest"], storage / "overlay" / name / "diff"
        name = layers[name].get("parent")


def _adopt(instance: Instance, folder: Path, chain: str, below: str) -> None:
    """Makes a folder a snapshot."""
    key = f"adopting-{uuid.uuid4()}"
    over = (below,) if below else ()
    (mount,) = json.loads(containerd(instance, "snapshots", "prepare", "--mounts", key, *over))
    own = _writable(mount).relative_to("/var/lib/containerd")
    place = instance.state / _CONTAINERD / own
    place.rmdir()
    place.symlink_to(folder)
    containerd(instance, "snapshots", "commit", chain, key)


def _writable(mount: dict[str, Any]) -> Path:
    """The folder of a mount that is written to."""
    if mount["Type"] == "bind":
        return Path(mount["Source"])
    options = dict(option.split("=", 1) for option in mount["Options"] if "=" in option)
    return Path(options["upperdir"])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
