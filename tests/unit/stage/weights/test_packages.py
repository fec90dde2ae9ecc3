"""Weights in packages: found without importing, and checked against what was installed."""

import base64
import hashlib
from pathlib import Path

import pytest

from omnistage_common.errors import InvalidWeights, MissingDependency
from omnistage_stage.weights.packages import (
    PackagedModel,
    broken_package_files,
    installed_version,
    model_folder,
    require_intact,
)

MODEL = PackagedModel(distribution="toy-model", folder="toy_model", suffix=".gguf", extra="toys")


def install(site: Path, content: bytes = b"weights") -> Path:
    """Lays out what an installer would; returns the model's file."""
    package, info = site / "toy_model", site / "toy_model-1.2.dist-info"
    package.mkdir()
    info.mkdir()
    file = package / "toy.gguf"
    file.write_bytes(content)
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-model\nVersion: 1.2\n")
    (info / "RECORD").write_text(
        f"toy_model/toy.gguf,sha256={digest},{len(content)}\n"
        "toy_model/__init__.py,sha256=AAAA,1\ntoy_model-1.2.dist-info/RECORD,,\n"
    )
    return file


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return install(tmp_path)


def test_an_intact_model_is_found(installed: Path) -> None:
    assert installed_version(MODEL) == "1.2"
    assert model_folder(MODEL) == installed.parent
    assert broken_package_files(MODEL) == []
    assert require_intact(MODEL) == installed.parent


def test_a_file_that_changed_is_named_with_the_remedy(installed: Path) -> None:
    installed.write_bytes(b"weightS")

    assert broken_package_files(MODEL) == [f"{installed} is not the file that was installed"]
    with pytest.raises(InvalidWeights, match=r"toy\.gguf .*--force-reinstall .*toy-model"):
        require_intact(MODEL)


def test_a_missing_file_is_named(installed: Path) -> None:
    installed.unlink()

    assert broken_package_files(MODEL) == [f"{installed} is missing"]


def test_a_package_without_its_folder_is_broken(installed: Path, tmp_path: Path) -> None:
    installed.parent.rename(tmp_path / "elsewhere")

    with pytest.raises(InvalidWeights, match="Reinstall it"):
        model_folder(MODEL)


def test_a_package_that_is_not_installed_is_told_with_its_extra() -> None:
    with pytest.raises(MissingDependency, match=r"omnistage\[toys\]"):
        installed_version(MODEL)
