"""The cluster's programs, built from source with Go, once for each version.

Each folder of `tests/cluster/modules` is a Go module whose `tool` directives pin some programs (one
module graph cannot hold them all). A module is built into a folder of the cache that is named by a
hash of everything the result depends on, next to its final place and then renamed, so that a build
that was cut short leaves nothing that looks finished.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from cluster.laboratory.commands import run
from cluster.laboratory.places import cache_folder, locked
from omnistage_common.errors import MissingDependency, SetupError

__all__ = ["ADD_ONS", "MODULES", "GoModule", "Report", "built", "module_of", "program_built"]

Report = Callable[[str], None]
"""Takes one line for people about what is going on."""

_FOLDER: Final = Path(__file__).parents[1] / "modules"
_UNFINISHED: Final = ".unfinished-"
_SAY_EVERY: Final = 200
"""Packages compiled between two lines of progress."""


class GoModule(Struct, frozen=True, kw_only=True):
    """One folder of `tests/cluster/modules` and the programs that come from it."""

    name: str
    programs: tuple[str, ...]
    package: str = "tool"
    """What is built; `tool` stands for every `tool` directive of the module."""
    subject: str = ""
    """Path of the Go module whose version names the programs; empty: ours, which has none."""
    brings: tuple[str, ...] = ()
    """Folders of the subject's sources that are copied next to the programs."""
    modules: Path = _FOLDER

    @property
    def folder(self) -> Path:
        """The sources: go.mod, go.sum and what we wrote ourselves."""
        return self.modules / self.name

    @property
    def version(self) -> str:
        """The pinned version of the programs, such as `v1.34.4`; `local` for ours."""
        text = (self.folder / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^\s*(?:require )?{re.escape(self.subject)} (v\S+)", text, re.MULTILINE)
        return found.group(1) if self.subject and found else "local"


MODULES: Final = (
    GoModule(
        name="kubernetes",
        programs=(
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        ),
        subject="k8s.io/kubernetes",
    ),
    GoModule(name="etcd", programs=("etcd",), subject="go.etcd.io/etcd/server/v3"),
    GoModule(
        name="coredns",
        programs=("coredns",),
        package=".",
        subject="github.com/coredns/coredns",
    ),
    GoModule(
        name="cni",
        programs=("bridge", "host-local", "loopback", "portmap"),
        subject="github.com/containernetworking/plugins",
    ),
    GoModule(name="helm", programs=("helm",), subject="helm.sh/helm/v4"),
    GoModule(name="pause", programs=("pause",), package="."),
)
"""What every cluster runs."""

ADD_ONS: Final = (
    GoModule(
        name="lws",
        programs=("leader-worker-sets",),
        package="sigs.k8s.io/lws/cmd",
        subject="sigs.k8s.io/lws",
        brings=("config/crd/bases", "config/webhook"),
    ),
)
"""What a test adds to a cluster: built with the others, started by who needs it."""


def module_of(program: str) -> GoModule:
    """The module that a program comes from."""
    return next(module for module in (*MODULES, *ADD_ONS) if program in module.programs)


def program_built(program: str, report: Report) -> Path:
    """The path of one program, built first when it is not there."""
    return built(module_of(program), report) / program


def built(module: GoModule, report: Report) -> Path:
    """The folder of a module's programs, built first when it is not there.

    Raises:
        MissingDependency: Go is not installed.
        SetupError: The build failed.
    """
    go = _go()
    folder = cache_folder() / "programs" / f"{module.name}-{module.version}-{_key(module, go)}"
    if not folder.exists():
        with locked(folder.parent):
            if not folder.exists():
                _build(module, go, folder, report)
    return folder


def _go() -> Path:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if found is None:
        raise MissingDependency(
            "The laboratory cluster is built from source with Go, which is not installed. Install "
            "Go 1.26 or newer (https://go.dev/dl), or set KUBECONFIG to use a cluster of your own"
        )
    return Path(found)


def _key(module: GoModule, go: Path) -> str:
    parts = hashlib.sha256(run(go, "env", "GOVERSION", "GOARCH").encode())
    parts.update(" ".join([*_flags(module), *module.brings]).encode())
    for source in sorted(module.folder.iterdir()):
        parts.update(source.read_bytes())
    return parts.hexdigest()[:12]


def _flags(module: GoModule) -> list[str]:
    stamps = _kubernetes_stamps(module.version) if module.name == "kubernetes" else []
    return ["-buildvcs=false", "-trimpath", "-ldflags", " ".join(["-s", "-w", *stamps])]


def _kubernetes_stamps(version: str) -> list[str]:
    """Without them Kubernetes takes itself for v0.0.0, and refuses its own API versions."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [f"-X {package}.{key}={value}" for package in packages for key, value in values.items()]


def _build(module: GoModule, go: Path, folder: Path, report: Report) -> None:
    title = f"{module.name} {module.version}"
    report(f"building {title} from source; once, and then it is kept")
    began = time.monotonic()
    for cut_short in folder.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(cut_short)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_UNFINISHED) as unfinished:
        output = Path(unfinished) / "bin"
        output.mkdir()
        target = output if len(module.programs) > 1 else output / module.programs[0]
        command = [str(go), "build", "-v", "-p", str(min(os.cpu_count() or 1, 8)), *_flags(module)]
        _compile(module, [*command, "-o", str(target), module.package], title, report)
        _bring(module, go, output)
        output.rename(folder)
    report(f"built {title} in {time.monotonic() - began:.0f} s")


def _bring(module: GoModule, go: Path, output: Path) -> None:
    if not module.brings:
        return
    listing = (go, "-C", module.folder, "list", "-m", "-f", "{{.Dir}}", module.subject)
    sources = Path(run(*listing).strip())
    for name in module.brings:
        # Go keeps its sources read-only, folders too; a copy that cannot be removed is no use.
        (output / name).mkdir(parents=True)
        for file in (sources / name).iterdir():
            (output / name / file.name).write_bytes(file.read_bytes())


def _compile(module: GoModule, command: list[str], title: str, report: Report) -> None:
    last: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        command,
        cwd=module.folder,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as building:
        assert building.stderr is not None
        for number, line in enumerate(building.stderr, 1):
            last.append(line)
            if number % _SAY_EVERY == 0:
                report(f"{title}: {number} packages compiled")
    if building.returncode:
        raise SetupError(f"Building {title} failed: {''.join(last).strip()}")
