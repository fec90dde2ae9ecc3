"""Engines are found by name among all installed packages, ours and anybody's."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fakes.engine_io import engine_spec
from omnistage_common.errors import MissingDependency, SetupError
from omnistage_common.ids import EngineName
from omnistage_common.pipeline.plan import ParallelPlan
from omnistage_stage.engines.protocol import EngineSpec, Gang
from omnistage_stage.engines.registry import find_engine, make_engine
from omnistage_stage.engines.simulated import SimulatedEngine

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes packages that register engines, in a place that is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(package: str, **engines: str) -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {target}\n" for name, target in engines.items()]
        (info / "entry_points.txt").write_text("[omnistage.engines]\n" + "".join(lines))

    return make


def test_our_own_engines_are_registered_like_anybodys() -> None:
    assert find_engine(EngineName("simulated")) is SimulatedEngine


def test_an_engine_of_another_package_is_found(install: Install) -> None:
    install("theirs", copycat="omnistage_stage.engines.simulated:SimulatedEngine")

    assert find_engine(EngineName("copycat")) is SimulatedEngine


class OfOneDevice:
    """An engine that knows nothing of devices and nodes."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec


class OfOneNode(OfOneDevice):
    """An engine that spreads over the devices of one node."""

    takes_parallelism = True


@pytest.mark.parametrize(
    ("engine", "parallelism", "gang", "words", "field"),
    [
        (
            "OfOneDevice",
            ParallelPlan(tensor=2),
            None,
            "runs on one device; remove `parallelism`",
            "parallelism",
        ),
        (
            "OfOneNode",
            ParallelPlan(tensor=2, nodes=2),
            Gang(leader="there", rank=1),
            "runs on one node; remove `parallelism.nodes`",
            "parallelism.nodes",
        ),
    ],
)
def test_what_an_engine_would_not_heed_is_refused(
    install: Install,
    engine: str,
    parallelism: ParallelPlan,
    gang: Gang | None,
    words: str,
    field: str,
) -> None:
    install("theirs", theirs=f"{__name__}:{engine}")
    spec = msgspec.structs.replace(engine_spec({}), parallelism=parallelism, gang=gang)

    with pytest.raises(SetupError, match=words) as refused:
        make_engine(EngineName("theirs"), spec)

    assert refused.value.field == field
    assert make_engine(EngineName("theirs"), engine_spec({}))


def test_an_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(SetupError, match="no installed package registers an engine 'warp'") as no:
        find_engine(EngineName("warp"))

    assert "simulated" in no.value.message
    assert no.value.field == "engine"


def test_a_name_that_two_packages_claim_is_refused_with_both(install: Install) -> None:
    install("one", twin="first.package:Engine")
    install("two", twin="second.package:Engine")

    with pytest.raises(SetupError, match=r"first\.package:Engine and second\.package:Engine"):
        find_engine(EngineName("twin"))


def test_the_same_registration_twice_is_one(install: Install) -> None:
    for package in ("one", "two"):
        install(package, copycat="omnistage_stage.engines.simulated:SimulatedEngine")

    assert find_engine(EngineName("copycat")) is SimulatedEngine


def test_an_engine_whose_runtime_is_missing_says_what_is_missing(install: Install) -> None:
    install("theirs", hungry="no_such_runtime.engine:Engine")

    with pytest.raises(MissingDependency, match="no_such_runtime") as missing:
        find_engine(EngineName("hungry"))

    assert "hungry" in missing.value.message


def test_an_engine_that_its_package_does_not_have_is_refused(install: Install) -> None:
    install("theirs", absent="omnistage_stage.engines.simulated:NoSuchEngine")

    with pytest.raises(SetupError, match="NoSuchEngine"):
        find_engine(EngineName("absent"))


def test_an_engine_that_raises_when_it_is_made_is_a_setup_error(install: Install) -> None:
    # Any callable is a factory as far as an entry point can tell; this one takes no spec.
    install("theirs", moody="builtins:globals")

    with pytest.raises(SetupError, match="TypeError") as refused:
        make_engine(EngineName("moody"), engine_spec({}))

    assert refused.value.field == "engine"
