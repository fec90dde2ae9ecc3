"""What every image promises and can be read from its Dockerfile; that it runs is tested on a cluster."""

import fnmatch
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from unit.charts.rendering import ROOT

DOCKERFILES: Final = {
    "gateway": ROOT / "Dockerfile.gateway",
    "operator": ROOT / "operator" / "Dockerfile",
    "stage": ROOT / "Dockerfile.stage",
}
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EVERY: Final = pytest.mark.parametrize("component", DOCKERFILES)


def instructions(component: str) -> list[str]:
    """The instructions of a Dockerfile, each on one line, without comments."""
    text = DOCKERFILES[component].read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [line for line in joined.splitlines() if line]


@EVERY
def test_an_image_starts_its_component_as_nobody_special(component: str) -> None:
    script = f"omnistage-{component}"
    listed = instructions(component)

    assert script in PROJECT["project"]["scripts"]
    assert listed[-1] == f'ENTRYPOINT ["{script}"]'
    assert [line for line in listed if line.startswith("USER ")][-1] == "USER 65532:65532"


@EVERY
def test_an_image_is_built_without_a_frontend_to_pull_or_a_host_to_know(component: str) -> None:
    text = DOCKERFILES[component].read_text(encoding="utf-8")

    assert "syntax=" not in text
    assert re.findall(r"https?://|index-url[= ][^*]", text) == []
    assert text.count("ARG BASE_IMAGE=python:3.11-slim-bookworm\n") == 1


@EVERY
def test_every_step_that_installs_takes_the_settings_of_the_machine_as_secrets(
    component: str,
) -> None:
    installs = [
        line
        for line in instructions(component)
        if re.search(r"\bpip (install|wheel)\b|/stage-packages\.sh \"", line)
        and "--offline" not in line
    ]

    assert len(installs) >= 2
    for line in installs:
        assert "--mount=type=secret,id=pipconf,target=/etc/pip.conf" in line
        assert "--mount=type=secret,id=buildca,target=/run/build-ca.crt" in line
        assert "--mount=type=cache,target=/root/.cache/" in line


@EVERY
def test_an_image_says_what_it_is(component: str) -> None:
    (label,) = (line for line in instructions(component) if line.startswith("LABEL "))

    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in label
    assert f'title="omnistage-{component}"' in label


def test_a_build_context_has_what_the_wheel_is_made_from_and_no_test() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    def enters(path: str) -> bool:
        """Whether the last rule that meets the path or a folder above it lets it in."""
        above = [str(each) for each in (Path(path), *Path(path).parents)]
        verdict = True
        for rule in rules:
            pattern = rule.removeprefix("!")
            if any(fnmatch.fnmatch(each, pattern) for each in above if each != "."):
                verdict = rule.startswith("!")
        return verdict

    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = [
        *packages,
        "pyproject.toml",
        PROJECT["project"]["readme"],
        "LICENSE",
        "deploy/environment/overrides.txt",
        "deploy/environment/stage-packages.sh",
        "protos/omnistage_protos/stage/v1/stage.proto",
    ]
    assert [path for path in needed if not enters(path)] == []
    unwanted = [".git", "tests", "docs", ".venv", "deploy/pipelines", "deploy/environment/setup.sh"]
    assert [path for path in unwanted if enters(path)] == []
