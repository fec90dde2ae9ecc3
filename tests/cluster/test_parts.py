"""The parts of the laboratory that need no cluster: locks, builds, archives, names and addresses."""

import json
import tarfile
import threading
from itertools import combinations
from pathlib import Path

import pytest

from cluster.laboratory import images, places
from cluster.laboratory.archives import write_archive
from cluster.laboratory.building import ADD_ONS, MODULES, GoModule, built
from cluster.laboratory.commands import program, run
from cluster.laboratory.instance import Instance, Ranges, Started, loaded
from cluster.laboratory.servers import groups
from omnistage_common.errors import MissingDependency, SetupError


def go_module(folder: Path, source: str) -> GoModule:
    """A module of one small program."""
    (folder / "small").mkdir()
    (folder / "small" / "go.mod").write_text("module small\n\ngo 1.24\n", encoding="utf-8")
    (folder / "small" / "main.go").write_text(source, encoding="utf-8")
    return GoModule(name="small", programs=("small",), package=".", modules=folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("OMNISTAGE_CACHE", str(tmp_path / "cache"))
    return places.cache_folder()


def test_a_program_is_built_once_and_again_when_its_source_changes(
    cache: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    module = go_module(tmp_path, "package main\n\nfunc main() { println(1) }\n")

    first = built(module, said.append)
    assert built(module, said.append) == first
    assert [line for line in said if "built" in line] == said[1:2]

    (tmp_path / "small" / "main.go").write_text("package main\n\nfunc main() {}\n", "utf-8")
    second = built(module, said.append)

    assert second != first
    assert {folder.name for folder in (cache / "programs").iterdir()} == {first.name, second.name}
    assert run(second / "small") == ""


def test_a_build_that_fails_tells_the_compilers_words_and_leaves_nothing(
    cache: Path, tmp_path: Path
) -> None:
    module = go_module(tmp_path, "package main\n\nfunc main() { undefined() }\n")

    with pytest.raises(SetupError, match="undefined: undefined"):
        built(module, lambda _: None)

    assert list((cache / "programs").iterdir()) == []


def test_what_a_killed_build_left_is_removed_by_the_next(cache: Path, tmp_path: Path) -> None:
    (cache / "programs" / ".unfinished-1234" / "bin").mkdir(parents=True)

    folder = built(go_module(tmp_path, "package main\n\nfunc main() {}\n"), lambda _: None)

    assert list((cache / "programs").iterdir()) == [folder]


@pytest.mark.parametrize("module", [*MODULES, *ADD_ONS], ids=lambda module: module.name)
def test_every_module_pins_its_programs_and_names_no_host_of_a_mirror(module: GoModule) -> None:
    text = (module.folder / "go.mod").read_text(encoding="utf-8")

    assert module.version.startswith("v") == bool(module.subject)
    assert "://" not in text
    assert (module.folder / "go.sum").exists() == bool(module.subject)


def test_a_lock_is_held_by_one_at_a_time_also_when_its_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    inside, most = 0, 0
    failures: list[str] = []

    def work() -> None:
        nonlocal inside, most
        for turn in range(50):
            with places.locked(folder):
                inside += 1
                most = max(most, inside)
                if not folder.exists():
                    failures.append("the folder is gone")
                inside -= 1
                if turn % 7 == 0:
                    folder.rmdir()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    assert failures == []


@pytest.mark.parametrize("folder", ["/run/x", "/var/lib/x/y", "/var/log/z", "/var/run/a"])
def test_a_place_that_the_node_cannot_see_is_refused(folder: str) -> None:
    with pytest.raises(SetupError, match="OMNISTAGE_CACHE"):
        places.require_visible(Path(folder))


def test_clusters_with_different_numbers_share_no_address() -> None:
    everything = [Ranges(number=number) for number in range(Ranges.COUNT)]

    networks = [network for ranges in everything for network in ranges.networks]

    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))
    assert all(
        ranges.node in ranges.link and ranges.dns in ranges.services for ranges in everything
    )


def test_an_instance_is_read_as_it_was_saved(tmp_path: Path) -> None:
    instance = Instance(state=tmp_path, ranges=Ranges(number=3), node=Started(pid=17, ticks=12345))
    assert loaded(tmp_path) is None

    instance.save()

    assert loaded(tmp_path) == instance
    assert [path.name for path in tmp_path.iterdir()] == ["instance.json"]


def test_every_server_can_be_asked_whether_it_serves(tmp_path: Path) -> None:
    servers = [
        s for group in groups(Instance(state=tmp_path, ranges=Ranges(number=0))) for s in group
    ]

    assert len({server.name for server in servers}) == len(servers) == 8
    assert all(bool(server.url) != bool(server.socket) for server in servers)


def test_an_archive_holds_what_its_manifest_names(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as contents:
        contents.add(__file__, "file.py")

    write_archive(tmp_path / "image.tar", "omnistage.local/x:1", layer, {"Cmd": ["x"]})

    with tarfile.open(tmp_path / "image.tar") as image:
        names = set(image.getnames())
        manifest = json.load(image.extractfile("manifest.json") or pytest.fail("no manifest"))
    assert {manifest[0]["Config"], *manifest[0]["Layers"], "manifest.json"} == names


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("python:3.11-slim", "docker.io/library/python:3.11-slim"),
        ("vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1"),
        ("omnistage.local/x:1", "omnistage.local/x:1"),
        ("localhost/x:1", "localhost/x:1"),
        ("host:5000/x", "host:5000/x"),
    ],
)
def test_image_names_are_completed_as_container_runtimes_do(given: str, full: str) -> None:
    assert images.full_name(given) == full


def test_pips_settings_become_secrets_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "authority.pem"
    authority.touch()
    monkeypatch.setattr(
        images,
        "_pip_settings",
        lambda: {"cert": str(authority), "index-url": "https://a.test/simple"},
    )

    options = images._secrets(tmp_path)

    written = (tmp_path / "pip.conf").read_text(encoding="utf-8").splitlines()
    assert written == ["[global]", "index-url = https://a.test/simple", "cert = /run/build-ca.crt"]
    assert [option.split(",")[0] for option in options] == [
        "--secret=id=buildca",
        "--secret=id=pipconf",
    ]


def test_a_build_gets_no_secrets_where_pip_has_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_pip_settings", dict)

    assert images._secrets(tmp_path) == []


def test_a_missing_program_is_named_with_its_package() -> None:
    assert program("ip").is_absolute()

    with pytest.raises(MissingDependency, match="apt-get install --yes no-such-thing"):
        program("no-such-thing")


def test_a_command_that_fails_or_hangs_is_an_error_with_its_words() -> None:
    with pytest.raises(SetupError, match="code 3: sorry"):
        run("sh", "-c", "echo sorry >&2; exit 3")
    with pytest.raises(SetupError, match="did not end within"):
        run("sleep", "60", seconds=0.05)
    with pytest.raises(SetupError, match="could not be started"):
        run("/no/such/program")
    assert run("cat", text="said") == "said"
