"""Image archives made without any tool or registry: a layer or two, wrapped as images are exported.

The format is that of `docker save`: a tar file with the layers, a configuration and a manifest that
names them. buildah and containerd read it.
"""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

from cluster.laboratory.settings import PAUSE_IMAGE

__all__ = ["pause_archive", "write_archive", "write_description"]


def pause_archive(program: Path, archive: Path) -> None:
    """Writes the image of the pause container: one static program and nothing else."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as contents:
        entry = tarfile.TarInfo("pause")
        entry.mode = 0o755
        body = program.resolve().read_bytes()
        entry.size = len(body)
        contents.addfile(entry, io.BytesIO(body))
    config = {"Entrypoint": ["/pause"], "User": "65535:65535"}
    packed = archive.with_suffix(".layer")
    packed.write_bytes(layer.getvalue())
    write_archive(archive, PAUSE_IMAGE, packed, config)
    packed.unlink()


def write_archive(archive: Path, tag: str, layer: Path, config: dict[str, Any]) -> None:
    """Writes an image of one layer.

    Args:
        archive: The file to write.
        tag: Name that the image gets where the archive is imported.
        layer: An uncompressed tar file of the image's root.
        config: As in an image's configuration: `Entrypoint`, `Env`, `User` and so on.
    """
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    document = {
        "architecture": _architecture(),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "omnistage laboratory"}],
    }
    body = json.dumps(document).encode()
    name = f"{hashlib.sha256(body).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}.tar"]}]
    with tarfile.open(archive, "w") as contents:
        contents.add(layer, f"{digest}.tar")
        _add(contents, name, body)
        _add(contents, "manifest.json", json.dumps(manifest).encode())


def write_description(archive: Path, tag: str, manifest: bytes, config: bytes) -> None:
    """Writes an image without its layers, for a node that has them: a layout as the OCI has it.

    Args:
        archive: The file to write.
        tag: Name that the image gets where the archive is imported.
        manifest: Names the configuration and the layers.
        config: The image's configuration.
    """
    manifest_digest = hashlib.sha256(manifest).hexdigest()
    described = {
        "mediaType": json.loads(manifest)["mediaType"],
        "digest": f"sha256:{manifest_digest}",
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": tag},
    }
    index = {"schemaVersion": 2, "manifests": [described]}
    with tarfile.open(archive, "w") as contents:
        _add(contents, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(contents, "index.json", json.dumps(index).encode())
        _add(contents, f"blobs/sha256/{manifest_digest}", manifest)
        _add(contents, f"blobs/sha256/{hashlib.sha256(config).hexdigest()}", config)


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _add(contents: tarfile.TarFile, name: str, body: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(body)
    contents.addfile(entry, io.BytesIO(body))
