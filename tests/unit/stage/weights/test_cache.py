"""A prepared entry is whole or it is made anew; two who ask at once make it once."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from omnistage_common.errors import InvalidWeights
from omnistage_stage.weights.cache import (
    MANIFEST_NAME,
    Recipe,
    WeightsCache,
    default_cache_folder,
)
from omnistage_stage.weights.progress import Progress


class Kitchen:
    """A recipe that counts how often it is cooked."""

    def __init__(self, folder: Path) -> None:
        self.cooked = 0
        self.said: list[str] = []
        self.cache = WeightsCache(folder)
        self.recipe = Recipe(name="toy", version="1.0", recipe_version=1, build=self._build)

    def prepare(self) -> Path:
        """The entry."""
        return self.cache.prepare(self.recipe, self.said.append)

    def _build(self, folder: Path, progress: Progress) -> None:
        self.cooked += 1
        progress("cooking")
        (folder / "config.json").write_bytes(b"{}")
        (folder / "parts").mkdir()
        (folder / "parts" / "weights.bin").write_bytes(bytes(range(256)) * 64)


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)


def weights(entry: Path) -> bytes:
    return (entry / "parts" / "weights.bin").read_bytes()


def test_an_entry_is_made_once_and_found_again(kitchen: Kitchen) -> None:
    first = kitchen.prepare()
    second = kitchen.prepare()

    assert first == second == kitchen.cache.path(kitchen.recipe)
    assert first.name == "toy-1.0-1"
    assert kitchen.cooked == 1
    assert kitchen.said == ["cooking", "recording hashes of toy-1.0-1"]
    assert kitchen.cache.problems(kitchen.recipe) == []


def flip_a_byte(entry: Path) -> None:
    path = entry / "parts" / "weights.bin"
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[1234] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(entry: Path) -> None:
    path = entry / "parts" / "weights.bin"
    path.write_bytes(path.read_bytes()[:-1])


def replace_by_a_folder(entry: Path) -> None:
    (entry / "config.json").unlink()
    (entry / "config.json").mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip_a_byte, "weights.bin has changed"),
        (truncate, "weights.bin has 16383 bytes instead of 16384"),
        (lambda entry: (entry / "config.json").unlink(), "config.json is missing"),
        (replace_by_a_folder, "config.json is missing"),
        (lambda entry: (entry / "modeling.py").write_text("x = 1"), "modeling.py is not in the"),
        (lambda entry: (entry / MANIFEST_NAME).unlink(), "never prepared, or not to the end"),
        (lambda entry: (entry / MANIFEST_NAME).write_text("{"), f"{MANIFEST_NAME} cannot be read"),
        (lambda entry: (entry / MANIFEST_NAME).write_bytes(b"\xff"), "cannot be read"),
        (
            lambda entry: (entry / MANIFEST_NAME).write_text('{"key": "other", "files": {}}'),
            "belongs to other",
        ),
    ],
)
def test_a_broken_entry_is_named_and_made_anew(
    kitchen: Kitchen, damage: Callable[[Path], object], said: str
) -> None:
    entry = kitchen.prepare()
    whole = weights(entry)
    damage(entry)

    assert any(said in problem for problem in kitchen.cache.problems(kitchen.recipe))
    assert weights(kitchen.prepare()) == whole
    assert kitchen.cooked == 2
    assert kitchen.cache.problems(kitchen.recipe) == []


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path, _progress: Progress) -> None:
        (folder / "half").write_bytes(b"x")
        raise InvalidWeights("no such tensor")

    recipe = Recipe(name="toy", version="1.0", recipe_version=1, build=fail)
    with pytest.raises(InvalidWeights, match="no such tensor"):
        WeightsCache(tmp_path).prepare(recipe)

    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["toy-1.0-1.lock"]


def test_what_a_killed_builder_left_is_removed(kitchen: Kitchen) -> None:
    left = kitchen.cache.path(kitchen.recipe).parent / ".building-toy-1.0-1-dead"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")

    kitchen.prepare()

    assert not left.exists()


def test_another_recipe_version_is_another_entry(kitchen: Kitchen, tmp_path: Path) -> None:
    first = kitchen.prepare()
    newer = Recipe(name="toy", version="1.0", recipe_version=2, build=kitchen.recipe.build)

    assert WeightsCache(tmp_path).prepare(newer) != first
    assert kitchen.cooked == 2


def test_a_cache_folder_that_cannot_be_written_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("a file is in the way")

    with pytest.raises(InvalidWeights, match="another folder in OMNISTAGE_CACHE"):
        Kitchen(tmp_path).prepare()


BUILDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from omnistage_stage.weights.cache import Recipe, WeightsCache

    folder = Path(sys.argv[1])

    def build(target, progress):
        with (folder / "cooked").open("a") as file:
            file.write("x")
        print("building", flush=True)
        sys.stdin.readline()
        (target / "weights.bin").write_bytes(b"w" * 1000)

    def say(message):
        print(message.partition(" ")[0], flush=True)

    recipe = Recipe(name="toy", version="1.0", recipe_version=1, build=build)
    print(WeightsCache(folder).prepare(recipe, say), flush=True)
    """
)


def builder(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_two_processes_that_start_at_once_build_once(tmp_path: Path) -> None:
    with builder(tmp_path) as first:
        assert line(first) == "building"
        with builder(tmp_path) as second:
            assert line(second) == "waiting"
            first.communicate("go\n", timeout=20)
            said, _ = second.communicate(timeout=20)

    assert first.returncode == second.returncode == 0
    assert said.strip() == str(tmp_path / "weights" / "toy-1.0-1")
    assert (tmp_path / "cooked").read_text() == "x"


def test_a_killed_builder_gives_way_to_the_next(tmp_path: Path) -> None:
    with builder(tmp_path) as first:
        assert line(first) == "building"
        first.kill()
        first.communicate(timeout=20)
    with builder(tmp_path) as second:
        assert line(second) == "building"
        second.communicate("go\n", timeout=20)

    assert second.returncode == 0
    assert (tmp_path / "cooked").read_text() == "xx"
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [
        "toy-1.0-1",
        "toy-1.0-1.lock",
    ]


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNISTAGE_CACHE", "/somewhere")
    assert default_cache_folder() == Path("/somewhere")
    monkeypatch.setenv("OMNISTAGE_CACHE", "")
    assert default_cache_folder() == Path.home() / ".cache" / "omnistage"
