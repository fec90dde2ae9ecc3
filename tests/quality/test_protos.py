"""The wire contract is linted, and what is generated from it is built and never committed."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from quality.repository import ROOT, files, tracked_files

PROTOS = [path for path in files() if path.suffix == ".proto"]


def test_the_protos_pass_buf_lint() -> None:
    buf = Path(sys.executable).with_name("buf")

    done = subprocess.run(
        [buf, "lint", "protos"], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_generated_code_is_not_tracked() -> None:
    assert [path for path in tracked_files() if "_pb2" in path.name] == []


@pytest.mark.parametrize("proto", PROTOS, ids=str)
def test_generated_code_is_as_young_as_its_proto(proto: Path) -> None:
    name = ".".join(proto.with_suffix("").parts[1:]) + "_pb2"

    descriptor = importlib.import_module(name).DESCRIPTOR

    text = (ROOT / proto).read_text(encoding="utf-8")
    assert sorted(descriptor.message_types_by_name) == top_level_names(text, "message")
    assert sorted(descriptor.services_by_name) == top_level_names(text, "service")


def top_level_names(text: str, keyword: str) -> list[str]:
    """Names that a proto file declares outside any block, sorted."""
    return sorted(line.split()[1] for line in text.splitlines() if line.startswith(f"{keyword} "))
