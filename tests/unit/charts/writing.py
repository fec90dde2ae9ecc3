"""Writes what is made from the chart: plain manifests, and the page of its values.

From the folder `tests`, `python -m unit.charts.writing` writes them; a test holds them in step.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from unit.charts.rendering import CHART, ROOT, rendered_text

__all__ = ["MADE"]

_MANIFESTS: Final = ROOT / "deploy" / "manifests" / "omnistage.yaml"
_PAGE: Final = ROOT / "docs" / "reference" / "chart-values.md"

_HEADER: Final = """\
# Made from charts/omnistage by `python -m unit.charts.writing` (in the folder tests); do not edit.
#
# Everything but the custom resource definitions, which are in charts/omnistage/definitions:
#   kubectl apply --server-side -f charts/omnistage/definitions
#   kubectl apply --server-side -f deploy/manifests/omnistage.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: omnistage-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""
_OF_HELM: Final = ("app.kubernetes.io/managed-by: Helm", "helm.sh/chart: ", "# Source: ")

_INTRODUCTION: Final = """\
<!-- Made from charts/omnistage/values.schema.json by `python -m unit.charts.writing`; do not edit. -->

# Chart values

What `helm install` and `helm upgrade` can be told with `--set` or `--values`. A value that is not on
this page is refused. `helm show values charts/omnistage` prints all of them as a file.

| value | default | what it is |
|---|---|---|
"""


def manifests() -> str:
    """All objects of a release, for people without helm."""
    text = rendered_text({"definitions": {"install": False}})
    kept = [
        line for line in text.splitlines() if not line.strip().startswith(_OF_HELM) and line.strip()
    ]
    return _HEADER + "\n".join(kept) + "\n"


def values_page() -> str:
    """Every value, its default and its description."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return _INTRODUCTION + "".join(_rows(schema, defaults, ""))


def _rows(schema: dict[str, Any], defaults: dict[str, Any], prefix: str) -> Iterator[str]:
    for name, described in schema["properties"].items():
        if name not in defaults:
            continue
        path = f"{prefix}{name}"
        text = described["description"].replace("|", "\\|")
        if "properties" in described:
            yield f"| **`{path}`** | | {text} |\n"
            yield from _rows(described, defaults[name], f"{path}.")
        else:
            yield f"| `{path}` | `{json.dumps(defaults[name])}` | {text}{_range(described)} |\n"


def _range(described: dict[str, Any]) -> str:
    """What a value may be, where that is not all of its type."""
    if "enum" in described:
        return f" One of {', '.join(f'`{each}`' for each in described['enum'])}."
    least, most = described.get("minimum"), described.get("maximum")
    if most is not None:
        return f" From {least} to {most}."
    return f" At least {least}." if least else ""


MADE: Final = {_MANIFESTS: manifests, _PAGE: values_page}
"""File -> what makes its text."""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for file, make in MADE.items():
        _write(file, make())
