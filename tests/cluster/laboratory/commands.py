"""Programs of others, run to their end: what they print, or an error that carries what they said.

Everything here that changes the machine (mounts, links, images) is done by a well-known program, so
that a reader can repeat it by hand. This module must not know what any of them is for.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from omnistage_common.errors import MissingDependency, SetupError, truncated

__all__ = ["COMMAND_SECONDS", "program", "run"]

COMMAND_SECONDS: Final = 120.0
"""Longest time that a command may take when its caller names none."""

_PACKAGES: Final = {
    "buildah": "buildah",
    "containerd": "containerd",
    "ctr": "containerd",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "nsenter": "util-linux",
    "runc": "runc",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
"""Program -> the Debian package that brings it."""


def program(name: str) -> Path:
    """The absolute path of a system program.

    Raises:
        MissingDependency: It is not installed; the message names the Debian package.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        package = _PACKAGES.get(name, name)
        raise MissingDependency(
            f"{name} is not installed. Debian, Ubuntu: sudo apt-get install --yes {package}"
        )
    return Path(found)


def run(
    *command: str | Path,
    text: str | None = None,
    stdin: IO[bytes] | None = None,
    seconds: float = COMMAND_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs a command and returns what it wrote to its standard output.

    Args:
        command: The program and its arguments.
        text: What it reads from its standard input.
        stdin: The file it reads instead; without either it finds nothing to read.
        seconds: After this it is killed.
        environment: All of its environment; the caller's own when None.

    Raises:
        SetupError: It could not be started, failed or took too long.
    """
    shown = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            input=None if text is None else text.encode(),
            stdin=None if text is not None else stdin or subprocess.DEVNULL,
            timeout=seconds,
            env=environment,
        )
    except OSError as error:
        raise SetupError(f"`{shown}` could not be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"`{shown}` did not end within {seconds:.0f} s") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or b"").decode(errors="replace").strip()
        raise SetupError(
            f"`{truncated(shown)}` failed with code {error.returncode}: {truncated(said[-500:])}"
        ) from error
    output: bytes = done.stdout
    return output.decode()
