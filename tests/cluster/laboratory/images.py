r"""Container images without a registry: a base made from Debian's packages, builds, loading.

buildah keeps its images in the cache, away from those of the machine. Nothing is ever pulled: the
base image also gets the names that Dockerfiles build on (`stand_ins`), and it is as those images
are: Debian with a `python` and a `pip` that installs.

pip's settings of this machine (a mirror, an authority of its own) reach a build as secrets, which
leave no trace in the image and are simply absent in somebody else's build. A Dockerfile asks for
them with

    RUN --mount=type=secret,id=pipconf,target=/etc/pip.conf \
        --mount=type=secret,id=buildca,target=/run/build-ca.crt \
        --mount=type=cache,target=/root/.cache/pip \
        pip install ...
"""

import ast
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cluster.laboratory.archives import write_archive
from cluster.laboratory.building import Report
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import Instance
from cluster.laboratory.places import cache_folder, locked
from cluster.laboratory.sharing import can_share, containerd, share

__all__ = ["BASE", "base_archive", "build", "exported", "full_name", "load"]

BASE: Final = "omnistage.local/base:bookworm"
"""Debian 12 with its Python 3.11."""

_SUITE: Final = "bookworm"
_PACKAGES: Final = (
    "ca-certificates",
    "python3",
    "python3-pip",
    "python3-venv",
    "python-is-python3",
)
_RECIPE: Final = (
    "--variant=minbase",
    "--format=tar",
    f"--include={','.join(_PACKAGES)}",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    # The images that this one stands in for let pip install for everybody.
    "--customize-hook=rm -f $1/usr/lib/python3*/EXTERNALLY-MANAGED",
)
_SOURCES: Final = Path("/etc/apt/sources.list.d/debian.sources")
_HANDED_ON: Final = ("index-url", "extra-index-url", "trusted-host", "default-timeout")
"""Settings of pip that mean the same within a build."""
_CERTIFICATES_IN_BUILD: Final = "/run/build-ca.crt"
_BUILD_SECONDS: Final = 1800.0


def _folder() -> Path:
    return cache_folder() / "images"


def full_name(tag: str) -> str:
    """The name with the host and folder that are meant when they are left out."""
    host, slash, _ = tag.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host):
        return tag
    return f"docker.io/{tag}" if slash else f"docker.io/library/{tag}"


def base_archive(report: Report) -> Path:
    """The base image as an archive, made first when it is not in the cache.

    Raises:
        SetupError: mmdebstrap is missing or could not get Debian's packages.
    """
    machine = run("dpkg", "--print-architecture").strip()
    recipe = hashlib.sha256(" ".join((*_RECIPE, _SUITE, machine)).encode()).hexdigest()[:12]
    archive = _folder() / f"base-{recipe}.tar"
    if not archive.exists():
        with locked(_folder()):
            if not archive.exists():
                report("making the base image from Debian's packages; once, and then it is kept")
                _make_base(archive)
    return archive


def _make_base(archive: Path) -> None:
    sources = (_SOURCES,) if _SOURCES.exists() and _SUITE in _SOURCES.read_text("utf-8") else ()
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        layer, unfinished = Path(scratch) / "layer.tar", Path(scratch) / "image.tar"
        run(program("mmdebstrap"), *_RECIPE, _SUITE, layer, *sources, seconds=_BUILD_SECONDS)
        search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        config = {"Env": [f"PATH={search}", "LANG=C.UTF-8"], "Cmd": ["python3"]}
        write_archive(unfinished, BASE, layer, config)
        unfinished.rename(archive)


def build(
    dockerfile: Path,
    context: Path,
    tag: str,
    *,
    arguments: Mapping[str, str] | None = None,
    stand_ins: Sequence[str] = (),
    report: Report,
) -> str:
    """Builds an image and returns its full name; layers that did not change are not built again.

    Args:
        dockerfile: What is built.
        context: The folder that `COPY` reads.
        tag: Name of the image.
        arguments: Build arguments.
        stand_ins: Names of images in `FROM` for which the base image stands in.
        report: Told what takes long.

    Raises:
        SetupError: The build failed; the message has its last lines.
    """
    _import_base(base_archive(report), stand_ins)
    with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
        _buildah(
            "build",
            "--isolation=chroot",
            "--network=host",
            "--pull-never",
            "--layers",
            f"--file={dockerfile}",
            f"--tag={full_name(tag)}",
            *(f"--build-arg={key}={value}" for key, value in (arguments or {}).items()),
            *_secrets(Path(scratch)),
            str(context),
        )
    return full_name(tag)


def exported(tag: str, folder: Path, report: Report) -> Path:
    """An archive of a built image, or of the base, as containerd, docker and kind read it.

    Args:
        tag: Its name.
        folder: Where the archive may be written.
        report: Told what takes long.
    """
    if tag == BASE:
        return base_archive(report)
    archive = folder / "image.tar"
    _buildah("push", full_name(tag), f"docker-archive:{archive}:{full_name(tag)}")
    return archive


def load(instance: Instance, tag: str, report: Report) -> None:
    """Gives a built image, or the base, to the node of a cluster: without a copy where that can be."""
    _folder().mkdir(parents=True, exist_ok=True)
    if tag != BASE and _driver() == "overlay" and can_share(instance):
        image = json.loads(_buildah("inspect", "--type=image", full_name(tag)))
        share(instance, full_name(tag), image, _folder() / "storage")
        return
    with tempfile.TemporaryDirectory(dir=_folder()) as scratch:
        archive = exported(tag, Path(scratch), report)
        containerd(instance, "images", "import", archive, seconds=_BUILD_SECONDS)


def _import_base(archive: Path, stand_ins: Sequence[str]) -> None:
    """Brings the base into buildah's storage, where it gets the names it stands in for."""
    marker = f"omnistage.local/{archive.stem}:imported"
    with locked(_folder()):
        if marker not in _buildah("images", "--format={{.Name}}:{{.Tag}}").split():
            _buildah("pull", f"docker-archive:{archive}")
            _buildah("tag", BASE, marker)
        for name in stand_ins:
            _buildah("tag", BASE, full_name(name))


def _secrets(scratch: Path) -> list[str]:
    """The options that hand pip's settings on; none where pip has none."""
    settings = _pip_settings()
    lines = [f"{key} = {settings[key]}" for key in _HANDED_ON if key in settings]
    certificates = Path(settings.get("cert", ""))
    options: list[str] = []
    if certificates.is_file():
        lines.append(f"cert = {_CERTIFICATES_IN_BUILD}")
        options.append(f"--secret=id=buildca,src={certificates}")
    if lines:
        (scratch / "pip.conf").write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
        options.append(f"--secret=id=pipconf,src={scratch / 'pip.conf'}")
    return options


def _pip_settings() -> dict[str, str]:
    """What pip was told by files and variables; of several that set the same, the last counts."""
    settings: dict[str, str] = {}
    for line in run(sys.executable, "-m", "pip", "config", "list").splitlines():
        place, _, value = line.partition("=")
        settings[place.rpartition(".")[2]] = str(ast.literal_eval(value))
    return settings


def _buildah(command: str, *arguments: str) -> str:
    folder = _folder()
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    _lend_packages(scratch / "buildah-cache" / "root" / ".cache" / "uv")
    storage = (
        "--root",
        folder / "storage",
        "--runroot",
        folder / "run",
        "--storage-driver",
        _driver(),
    )
    environment = {
        "HOME": str(Path.home()),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # Caches of `RUN --mount=type=cache` too.
        "TMPDIR": str(scratch),
    }
    return run(
        program("buildah"),
        *storage,
        command,
        *arguments,
        seconds=_BUILD_SECONDS,
        environment=environment,
    )


def _driver() -> str:
    """How buildah keeps layers: those of a file system that is stacked itself cannot be stacked."""
    kind = run("stat", "--file-system", "--format=%T", _folder()).strip()
    return "vfs" if kind == "overlayfs" else "overlay"


def _lend_packages(cache: Path) -> None:
    """Makes uv's cache in builds the one of this machine, which has most packages already."""
    own = os.environ.get("UV_CACHE_DIR")
    lent = Path(own) if own else Path.home() / ".cache" / "uv"
    if lent.is_dir() and not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            cache.symlink_to(lent.absolute())
