"""The committed definitions are what the models say, and small enough for everybody's tools."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from omnistage_common.pipeline.resources import API_VERSION, KINDS
from omnistage_operator.definitions.__main__ import main
from omnistage_operator.definitions.columns import APPEARANCES, GROUP, VERSION
from omnistage_operator.definitions.writing import definition_of, definitions, differing, write

COMMITTED = Path(__file__).parents[4] / "charts" / "omnistage" / "definitions"
ANNOTATION_LIMIT = 100_000
BUILT_IN_SHORT_NAMES = {
    *("cm", "cs", "cr", "crd", "csr", "cj", "deploy", "ds", "ep", "ev", "hpa", "ing", "limits"),
    *("lws", "netpol", "no", "ns", "pc", "pdb", "po", "pv", "pvc", "quota", "rc", "rs", "sa", "sc"),
    *("sts", "svc", "vap", "gtw", "gc", "sr"),
}


def test_the_committed_files_are_in_step_with_the_models() -> None:
    assert differing(COMMITTED) == (), (
        "run: python -m omnistage_operator.definitions --write charts/omnistage/definitions"
    )


@pytest.mark.parametrize("name", sorted(definitions()))
def test_a_file_is_small_enough_for_a_plain_apply(name: str) -> None:
    assert len(definitions()[name].encode()) < ANNOTATION_LIMIT


def test_there_is_one_file_for_each_kind_and_it_holds_that_kind() -> None:
    kinds = {
        yaml.safe_load(text)["spec"]["names"]["kind"]: name for name, text in definitions().items()
    }

    assert set(kinds) == set(KINDS)
    assert all(name == f"{APPEARANCES[kind].plural}.yaml" for kind, name in kinds.items())


def test_a_file_says_how_it_was_made_and_reads_back_as_it_was() -> None:
    text = definitions()["stages.yaml"]

    assert text.startswith("# Made by `python -m omnistage_operator.definitions`; do not edit.\n")
    assert yaml.safe_load(text) == definition_of("Stage")


def test_the_version_is_the_one_of_the_models() -> None:
    assert f"{GROUP}/{VERSION}" == API_VERSION


@pytest.mark.parametrize("kind", KINDS)
def test_the_one_version_is_served_and_stored(kind: str) -> None:
    versions = definition_of(kind)["spec"]["versions"]

    assert [(each["name"], each["served"], each["storage"]) for each in versions] == [
        (VERSION, True, True)
    ]


def test_short_names_are_nobody_elses() -> None:
    short = [name for looks in APPEARANCES.values() for name in looks.short_names]

    assert len(set(short)) == len(short)
    assert set(short) & BUILT_IN_SHORT_NAMES == set()


def test_writing_brings_a_folder_in_step_and_removes_what_is_too_many(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").write_text("kind: Gone\n", encoding="utf-8")
    (tmp_path / "stages.yaml").write_text("kind: Changed\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("stays\n", encoding="utf-8")

    assert set(differing(tmp_path)) == {"gone.yaml", *definitions()}
    write(tmp_path / "sub")
    write(tmp_path)

    assert differing(tmp_path) == differing(tmp_path / "sub") == ()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(
        ["README.md", *definitions()]
    )


def test_the_command_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert f"{tmp_path / 'stages.yaml'}: is not as the models say" in capsys.readouterr().err

    assert main(["--write", str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_what_is_written_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from omnistage_operator.definitions.writing import definitions;"
        "print(''.join(definitions().values()), end='')"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }

    assert texts == {"".join(definitions().values())}
