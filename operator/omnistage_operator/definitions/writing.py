"""Puts the definitions together and holds files of them in step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from omnistage_common.pipeline.resources import KINDS, Resource
from omnistage_common.pipeline.resources.status import STATUSES
from omnistage_operator.definitions.columns import APPEARANCES, CATEGORY, GROUP, VERSION, Appearance
from omnistage_operator.definitions.rules import IMMUTABLE
from omnistage_operator.definitions.schema import Schema, structural_schema, with_rules

__all__ = ["definition_of", "definitions", "differing", "write"]

_HEAD: Final = "# Made by `python -m omnistage_operator.definitions`; do not edit.\n"
_SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
_WIDTH: Final = 100


def definitions() -> dict[str, str]:
    """File name -> YAML of the definition of each kind."""
    return {
        f"{APPEARANCES[kind].plural}.yaml": _text(definition_of(kind)) for kind in sorted(KINDS)
    }


def definition_of(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    looks = APPEARANCES[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{looks.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": looks.scope.value,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": looks.plural,
                "singular": kind.lower(),
                "shortNames": [*looks.short_names],
                "categories": [CATEGORY],
            },
            "versions": [_version(kind, looks)],
        },
    }


def differing(folder: Path) -> tuple[str, ...]:
    """Names of files that are not as the models say: changed, missing or too many."""
    wanted = definitions()
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    return tuple(name for name in sorted({*wanted, *there}) if wanted.get(name) != there.get(name))


def write(folder: Path) -> None:
    """Brings the files of a folder in step; files of kinds that are gone are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = definitions()
    for name in differing(folder):
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        else:
            (folder / name).unlink()


def _version(kind: str, looks: Appearance) -> dict[str, Any]:
    subresources: dict[str, Any] = {}
    if kind in STATUSES:
        subresources["status"] = {}
    if looks.scale:
        subresources["scale"] = dict(_SCALE)
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _whole(kind, KINDS[kind])},
        "additionalPrinterColumns": [column.as_json() for column in looks.columns],
        "selectableFields": [{"jsonPath": path} for path in looks.selectable],
        "subresources": subresources,
    }
    return {key: value for key, value in version.items() if value not in ([], {})}


def _whole(kind: str, model: type[Resource]) -> Schema:
    """The schema of a resource as it is stored, status included."""
    schema = structural_schema(model)
    fields: dict[str, Schema] = schema["properties"]
    # A definition must leave out what every resource has, but it may bound the name.
    name = fields["metadata"]["properties"]["name"]
    for identity in ("apiVersion", "kind"):
        del fields[identity]["default"]
    properties = {**fields, "metadata": {"type": "object", "properties": {"name": name}}}
    if kind in IMMUTABLE:
        properties["spec"] = with_rules(properties["spec"], [IMMUTABLE[kind]])
    if kind in STATUSES:
        properties["status"] = structural_schema(STATUSES[kind])
    return {**schema, "properties": properties}


def _text(definition: Mapping[str, Any]) -> str:
    body = yaml.safe_dump(definition, sort_keys=False, width=_WIDTH, allow_unicode=True)
    return f"{_HEAD}{body}"
