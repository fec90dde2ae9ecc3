"""The guides for users of a cluster, word for word: each block is done in the order of the page.

A block of YAML whose first line names a file is that file; a block of shell is typed by the user. Only
the names of the release and its namespace are those of the test's own.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from cluster.laboratory.access import Cluster
from cluster.products import ROOT
from cluster.release import Product, installed

pytestmark = [pytest.mark.timeout(300, func_only=True)]

GUIDES: Final = ("write-a-pipeline", "why-is-my-pipeline-not-ready", "roll-out-a-change")
"""Each goes on where the one before ends."""
BLOCK: Final = re.compile(r"^```(yaml|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE: Final = re.compile(r"# ([\w.-]+\.yaml)\n")


@pytest.fixture(scope="module")
def product(cluster: Cluster) -> Iterator[Product]:
    with installed(cluster, {"gateway": {"replicas": 1}, "operator": {"replicas": 1}}) as product:
        yield product


@pytest.fixture
def path(cluster: Cluster, tmp_path: Path) -> str:
    """Where a user's shell finds the programs that the guides call."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(cluster.kubectl)
    (programs / "omnistage").symlink_to(Path(sys.executable).with_name("omnistage"))
    return f"{programs}:{os.environ['PATH']}"


def blocks(guide: str) -> Iterator[tuple[str, str]]:
    """Language and text of each block of a guide."""
    text = (ROOT / "docs" / "how-to" / f"{guide}.md").read_text(encoding="utf-8")
    yield from ((match[1], match[2]) for match in BLOCK.finditer(text))


def typed(script: str, folder: Path, environment: dict[str, str]) -> str:
    """What a shell says that runs a script in a folder; whatever it leaves running is ended."""
    shell = shutil.which("bash")
    assert shell is not None
    log = folder / "said"
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [shell, "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        code = process.wait()
        # Nobody is left, unless a port is forwarded in the background.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    text = log.read_text(encoding="utf-8")
    assert code == 0, f"{script}\n{text}"
    return text


def test_the_guides_do_what_they_say(product: Product, path: str, tmp_path: Path) -> None:
    environment = {**product.cluster.environment, "PATH": path}
    said = []

    for guide in GUIDES:
        for language, text in blocks(guide):
            named = FILE.match(text)
            if named is not None:
                (tmp_path / named[1]).write_text(text, encoding="utf-8")
            elif language == "bash":
                script = text.replace("omnistage-system", product.namespace)
                script = script.replace(
                    "service/omnistage-gateway", f"service/{product.name}-gateway"
                )
                said.append(typed(script, tmp_path, environment))

    everything = "".join(said)
    assert "storyteller is ready (2/2 stages)" in everything
    assert " once" * 8 in everything
    assert "bedtime condition met" in everything
    assert "phase: Serving" in everything
    assert 'namespace "stories" deleted' in everything
