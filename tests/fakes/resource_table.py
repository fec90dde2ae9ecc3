"""Resources that are valid, and many ways to make them invalid, with what the API server answers.

The same table serves the tests without a cluster (`omnistage validate` refuses them too) and those
on a real API server. It stands in `tests/fixtures/resources`.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

__all__ = ["INVALID", "VALID", "Invalid", "all_valid_text", "largest_template", "text_of"]

Document = dict[str, Any]

_FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "resources"

VALID: Final[dict[str, Document]] = {
    document["kind"]: document
    for document in yaml.safe_load_all((_FOLDER / "valid.yaml").read_text(encoding="utf-8"))
}
"""Kind -> a resource that is valid; together they resolve."""


class Invalid(NamedTuple):
    """A way to be refused."""

    claim: str
    document: Document
    answer: str
    """What the API server says, from the field on; `...` is what differs between its releases."""
    local: bool
    """Whether `omnistage validate` refuses it too."""

    def is_answered_by(self, text: str) -> bool:
        """Whether the parts of the answer stand in a text, one after the other."""
        parts = [part.strip() for part in self.answer.split("...")]
        return re.search(".*?".join(map(re.escape, parts)), text) is not None


def text_of(*documents: Document) -> str:
    """Resources as YAML."""
    return str(yaml.safe_dump_all(documents, sort_keys=False))


def all_valid_text(instead: Document | None = None) -> str:
    """All valid resources as YAML, with one of them replaced by an invalid one of its kind."""
    replaced = {instead["kind"]: instead} if instead is not None else {}
    return text_of(*({**VALID, **replaced}.values()))


def largest_template() -> Document:
    """A valid graph with as many stages, edges, outputs and letters as there may be."""
    names = [_long(f"stage-{number:02}-") for number in range(16)]
    edges = [
        {
            "from": name,
            "to": consumer,
            "output": _output(number, index),
            "kind": "tokens",
            "mode": "Stream",
            "chunk": {"firstFrames": [1, 2, 3, 4, 5, 6, 7, 8]},
        }
        for number, name in enumerate(names)
        for index, consumer in enumerate(names[number + 1 : number + 6])
    ]
    outputs: list[Document] = [
        {"stage": names[number], "output": _output(number, 7)} for number in range(8, 16)
    ]
    outputs[0]["modality"] = "text"
    stages = [
        {
            "name": name,
            "execution": "Generation",
            "consumes": [] if number else [{"name": "text", "kind": "text"}],
            "produces": [
                {"name": _output(number, index), "kind": "text" if index == 7 else "tokens"}
                for index in range(8)
            ],
            "defaults": {"engine": "simulated"},
        }
        for number, name in enumerate(names)
    ]
    # Of the 65 edges one is too many.
    spec = {"stages": stages, "edges": [edges[0], *edges[2:]], "outputs": outputs}
    return {**VALID["PipelineTemplate"], "spec": spec}


def _output(stage: int, index: int) -> str:
    return _long(f"output_{stage:02}_{index}_")


def _long(name: str) -> str:
    return name.ljust(32, "x")


def _invalid(entry: dict[str, Any]) -> Invalid:
    document = copy.deepcopy(VALID[entry["kind"]])
    if entry.get("inline", False):
        del document["spec"]["template"]
        document["spec"]["topology"] = copy.deepcopy(VALID["PipelineTemplate"]["spec"])
    for path, value in entry.get("set", {}).items():
        parent, last = _parent(document, path)
        if isinstance(parent, list) and last == len(parent):
            parent.append(value)
        else:
            parent[last] = value
    for path in entry.get("remove", ()):
        parent, last = _parent(document, path)
        del parent[last]
    return Invalid(
        claim=entry["claim"],
        document=document,
        answer=entry["answer"],
        local=entry.get("local", True),
    )


def _parent(document: Any, path: str) -> tuple[Any, str | int]:
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in above:
        document = document[part]
    return document, last


def _rings() -> Iterator[Invalid]:
    """Graphs too large to write out: as many stages as there may be, in a ring, and one more."""
    answers = {16: "spec.edges: Invalid value: ... lead in a circle", 17: "must have at most 16"}
    for size, answer in answers.items():
        document = copy.deepcopy(VALID["PipelineTemplate"])
        document["spec"] = {
            "stages": [
                {
                    "name": f"s{number}",
                    "execution": "Generation",
                    "produces": [{"name": f"out_{number}", "kind": "text"}],
                    "defaults": {"engine": "simulated"},
                }
                for number in range(size)
            ],
            "edges": [
                {"from": f"s{number}", "to": f"s{(number + 1) % size}", "output": f"out_{number}"}
                for number in range(size)
            ],
            "outputs": [{"stage": "s0", "output": "out_0", "modality": "text"}],
        }
        yield Invalid(claim=f"a ring of {size}", document=document, answer=answer, local=True)


INVALID: Final = (
    *map(_invalid, yaml.safe_load((_FOLDER / "invalid.yaml").read_text(encoding="utf-8"))),
    *_rings(),
)
"""Every way to be refused; what only the operator can know is not among them."""
