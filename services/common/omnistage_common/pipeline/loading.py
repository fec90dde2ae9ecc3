"""Files to resources: every problem of a file at once, each with its line.

What can be read is read: a broken document does not hide the others, and its name stays known
(`Resources.broken`), so that nobody is told that a template is missing when it is merely misspelt
inside.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import ValidationError

from omnistage_common.errors import InvalidPipeline
from omnistage_common.pipeline.documents import MAX_FILE_BYTES, read_documents
from omnistage_common.pipeline.explaining import explain
from omnistage_common.pipeline.problems import Place, Problem, Source, closest, shown
from omnistage_common.pipeline.resources import (
    API_VERSION,
    KINDS,
    InferencePipeline,
    Model,
    PipelineTemplate,
    Resource,
    Stage,
    StageRuntime,
)

__all__ = [
    "Document",
    "ResourceT",
    "Resources",
    "UnreadableFile",
    "load_file",
    "load_files",
    "load_objects",
    "load_text",
    "parse_model",
]

_SERVER_OWNED: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
"""Metadata that a cluster adds; a file that was exported from one may hold it."""

ResourceT = TypeVar("ResourceT", bound=Resource)
ResourceT_co = TypeVar("ResourceT_co", bound=Resource, covariant=True)
ModelT = TypeVar("ModelT", bound=Model)


class UnreadableFile(InvalidPipeline):
    """A file cannot be read at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document(Generic[ResourceT_co]):
    """A resource and where it was written."""

    resource: ResourceT_co
    source: Source

    @property
    def place(self) -> Place:
        """The root of the document."""
        return Place(source=self.source)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """All resources at hand, and what is wrong with those that could not be read."""

    templates: tuple[Document[PipelineTemplate], ...] = ()
    runtimes: tuple[Document[StageRuntime], ...] = ()
    pipelines: tuple[Document[InferencePipeline], ...] = ()
    stages: tuple[Document[Stage], ...] = ()
    problems: tuple[Problem, ...] = ()
    """Of files and single documents; what only several resources together show is found by
    `omnistage_common.pipeline.validation`."""
    broken: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of documents that have problems of their own."""

    @classmethod
    def of(cls, *resources: Resource) -> "Resources":
        """Resources that were made in Python or read from a cluster."""
        return _grouped(
            [
                Document(
                    resource=each,
                    source=Source(
                        file=f"{each.kind}/{each.metadata.name}",
                        data=each.model_dump(mode="json", by_alias=True, exclude_unset=True),
                    ),
                )
                for each in resources
            ]
        )


def load_file(path: Path) -> Resources:
    """The resources of a YAML file, and what is wrong with it.

    Raises:
        UnreadableFile: There is no such file, or it is not text of at most `MAX_FILE_BYTES`.
    """
    return load_files([path])


def load_files(paths: Iterable[Path]) -> Resources:
    """The resources of several YAML files together, and what is wrong with them.

    Raises:
        UnreadableFile: One of the files cannot be read.
    """
    return _joined([load_text(_text_of(path), file=str(path)) for path in paths])


def load_text(text: str, *, file: str) -> Resources:
    """The resources of YAML text, and what is wrong with it.

    Args:
        text: Any number of YAML documents.
        file: What to call it in problems.
    """
    sources, problems = read_documents(text, file=file)
    faulty = bool(problems)
    found = list(problems)
    documents: list[Document[Resource]] = []
    broken: set[tuple[str, str]] = set()
    for source in sources:
        resource, wrong = _parsed(source)
        found.extend(wrong)
        if resource is not None:
            documents.append(Document(resource=resource, source=source))
        else:
            broken.add(_identity(source))
    if not documents and not faulty and not broken:
        found.append(
            Problem(file=file, line=1, field="", message="holds no resources", remedy="add some")
        )
    return _grouped(documents, problems=tuple(found), broken=frozenset(broken))


def load_objects(objects: Iterable[Mapping[str, object]]) -> Resources:
    """The resources of a cluster's objects, and what is wrong with them; places are fields."""
    documents: list[Document[Resource]] = []
    found: list[Problem] = []
    broken: set[tuple[str, str]] = set()
    for each in objects:
        source = Source(file="/".join(_identity_of(each)), data=dict(each))
        resource, wrong = _parsed(source)
        found.extend(wrong)
        if resource is not None:
            documents.append(Document(resource=resource, source=source))
        else:
            broken.add(_identity_of(each))
    return _grouped(documents, problems=tuple(found), broken=frozenset(broken))


def parse_model(
    model: type[ModelT], data: object, place: Place
) -> tuple[ModelT | None, tuple[Problem, ...]]:
    """JSON values as a model, strictly: None and the problems where they do not fit.

    Args:
        model: What the values should be.
        data: JSON values with the outside (camelCase) names.
        place: Where they were written.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True, by_name=False), ()
    except ValidationError as error:
        return None, tuple(explain(error, place, model))


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise UnreadableFile(f"{path}: is over {MAX_FILE_BYTES} bytes; split it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{path}: is not UTF-8 text: byte {error.start}") from error


def _parsed(source: Source) -> tuple[Resource | None, tuple[Problem, ...]]:
    place = Place(source=source)
    if not isinstance(source.data, dict):
        return None, (place.problem("is not a mapping", "write one resource per document"),)
    data: dict[str, object] = source.data
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return None, (_unknown_kind(place, data),)
    if data.get("apiVersion") != API_VERSION:
        return None, (
            place.at("apiVersion").problem(
                f"is {shown(data.get('apiVersion'))}", f"write `apiVersion: {API_VERSION}`"
            ),
        )
    return parse_model(KINDS[kind], _as_written(data), place)


def _unknown_kind(place: Place, data: dict[str, object]) -> Problem:
    kind = data.get("kind")
    if kind is None:
        return place.at("kind").problem("is required", f"add one of {', '.join(KINDS)}")
    return place.at("kind").problem(
        f"is {shown(kind)}, which this release does not know",
        closest(str(kind), KINDS, what="kinds"),
    )


def _as_written(data: dict[str, object]) -> dict[str, object]:
    """A document without what a cluster adds to it."""
    written = {key: value for key, value in data.items() if key != "status"}
    metadata = written.get("metadata")
    if isinstance(metadata, dict):
        written["metadata"] = {k: v for k, v in metadata.items() if k not in _SERVER_OWNED}
    return written


def _identity(source: Source) -> tuple[str, str]:
    return _identity_of(source.data if isinstance(source.data, dict) else {})


def _identity_of(data: Mapping[str, object]) -> tuple[str, str]:
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return str(data.get("kind")), str(name)


def _grouped(
    documents: Iterable[Document[Resource]],
    *,
    problems: tuple[Problem, ...] = (),
    broken: frozenset[tuple[str, str]] = frozenset(),
) -> Resources:
    every = tuple(documents)
    return Resources(
        templates=_of_kind(every, PipelineTemplate),
        runtimes=_of_kind(every, StageRuntime),
        pipelines=_of_kind(every, InferencePipeline),
        stages=_of_kind(every, Stage),
        problems=problems,
        broken=broken,
    )


def _of_kind(
    documents: Iterable[Document[Resource]], kind: type[ResourceT]
) -> tuple[Document[ResourceT], ...]:
    return tuple(
        Document(resource=each.resource, source=each.source)
        for each in documents
        if isinstance(each.resource, kind)
    )


def _joined(parts: list[Resources]) -> Resources:
    return Resources(
        templates=tuple(each for part in parts for each in part.templates),
        runtimes=tuple(each for part in parts for each in part.runtimes),
        pipelines=tuple(each for part in parts for each in part.pipelines),
        stages=tuple(each for part in parts for each in part.stages),
        problems=tuple(each for part in parts for each in part.problems),
        broken=frozenset().union(*(part.broken for part in parts)),
    )
