"""The guide "install on a cluster": its examples are values, resources and manifests that are taken."""

import re
import subprocess
from typing import Final

import pytest
import yaml

from omnistage_common.pipeline.loading import load_text
from unit.charts.rendering import ROOT, render

GUIDE: Final = (ROOT / "docs/how-to/install-on-a-cluster.md").read_text(encoding="utf-8")
EXAMPLES: Final = re.findall(r"^```yaml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
COMMANDS: Final = re.findall(r"^```bash\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def example(start: str) -> str:
    """The one example that starts so."""
    (found,) = (str(text) for text in EXAMPLES if text.startswith(start))
    return found


def test_the_values_of_the_guide_are_values() -> None:
    values = yaml.safe_load(example("# values.yaml"))

    rendered = render(values, apis=("gateway.networking.k8s.io/v1",))

    assert rendered.of("HTTPRoute")
    assert rendered.of("HorizontalPodAutoscaler")


def test_the_runtime_of_the_guide_is_a_runtime() -> None:
    resources = load_text(example("apiVersion: omnistage.io"), file="guide.yaml")

    assert resources.problems == ()
    assert len(resources.runtimes) == 1


def test_the_kustomization_of_the_guide_names_what_is_there() -> None:
    kustomization = yaml.safe_load(example("# kustomization.yaml"))

    for name in kustomization["resources"]:
        assert (ROOT / "deploy" / "manifests" / name).exists()
    assert {each["name"] for each in kustomization["replicas"]} <= set(render().of("Deployment"))


def test_without_helm_all_images_come_from_the_registry() -> None:
    (sed,) = re.findall(r'^sed ".*?" \S+', GUIDE, re.MULTILINE)

    changed = subprocess.run(
        ["/bin/sh", "-c", sed],
        cwd=ROOT,
        env={"REGISTRY": "registry.example/team", "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    images = re.findall(r"\S*omnistage-\w+:0\.1\.0", changed)
    assert len(images) == 3
    assert all("registry.example/team/omnistage-" in image for image in images)


@pytest.mark.parametrize("option", re.findall(r"--set ([\w.]+)=", GUIDE))
def test_every_value_that_is_set_on_a_command_line_exists(option: str) -> None:
    defaults = yaml.safe_load((ROOT / "charts/omnistage/values.yaml").read_text("utf-8"))

    for part in option.split("."):
        assert part in defaults, option
        defaults = defaults[part]


def test_what_is_deleted_in_the_end_is_what_was_installed() -> None:
    (command,) = (text for text in COMMANDS if "kubectl delete customresourcedefinitions" in text)

    named = set(re.findall(r"[a-z]+\.omnistage\.io", command))
    assert named == set(render().of("CustomResourceDefinition"))
