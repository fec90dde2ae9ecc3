"""Python environments that see everything of ours and have engines of their own besides."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["EngineEnvironment"]


class EngineEnvironment:
    """An environment on top of the one that runs the tests.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self._packages = folder / "lib" / version / "site-packages"
        ours = Path(sysconfig.get_path("purelib"))
        (self._packages / "ours.pth").write_text(f"{ours}\n")
        for editable in ours.glob("*omnistage*.pth"):
            shutil.copy(editable, self._packages)

    def install(self, project: Path) -> None:
        """Installs a project as its user would, but from what is here."""
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
        quiet = ["--disable-pip-version-check", "--no-warn-script-location"]
        self._run("pip", "install", *options, *quiet, "--target", str(self._packages), str(project))

    def register(self, module: Path, **engines: str) -> None:
        """Puts a module there, with an entry point for each engine in it."""
        shutil.copy(module, self._packages)
        info = self._packages / f"{module.stem}-1.0.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 1.0\n"
        (info / "METADATA").write_text(metadata)
        lines = [f"{name} = {module.stem}:{kind}\n" for name, kind in engines.items()]
        (info / "entry_points.txt").write_text("[omnistage.engines]\n" + "".join(lines))

    def _run(self, *module: str) -> None:
        command = [str(self.python), "-m", *module]
        subprocess.run(command, check=True, capture_output=True, text=True)
