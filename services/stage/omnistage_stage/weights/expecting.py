"""What an engine cannot do without in a model folder, so that a wrong folder is refused early.

The table is data, so that whoever prepares weights can look before an engine, its libraries or a
process for it exist. Engines look more closely when they load; one that is not in the table takes
any folder.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from omnistage_common.errors import InvalidWeights
from omnistage_common.ids import EngineName

__all__ = ["Expectation", "require_expected"]


class Expectation(Struct, frozen=True, kw_only=True):
    """A format, by the files that show it."""

    format: str
    """Its name, for people."""
    files: tuple[tuple[str, ...], ...]
    """Groups of glob patterns; each group needs a file that matches one of its patterns."""


_HUGGING_FACE: Final = Expectation(
    format="a checkpoint folder in Hugging Face format",
    files=(("config.json",), ("*.safetensors", "*.bin", "*.pt")),
)
_EXPECTED: Final[Mapping[EngineName, Expectation]] = {
    EngineName("diffusers"): Expectation(
        format="a pipeline's folder in diffusers format", files=(("model_index.json",),)
    ),
    EngineName("torch"): _HUGGING_FACE,
    EngineName("vllm"): _HUGGING_FACE,
}


def require_expected(folder: Path, engine: EngineName) -> None:
    """Checks that a folder can be what an engine reads; nothing is opened.

    Raises:
        InvalidWeights: Files are missing; names each.
    """
    expectation = _EXPECTED.get(engine)
    if expectation is None:
        return
    missing = list(_missing(folder, expectation))
    if missing:
        raise InvalidWeights(
            f"{folder} has no {' and no '.join(missing)}; the {engine} engine reads "
            f"{expectation.format}",
            field="model",
        )


def _missing(folder: Path, expectation: Expectation) -> Iterator[str]:
    for patterns in expectation.files:
        if not any(path.is_file() for pattern in patterns for path in folder.glob(pattern)):
            yield " or ".join(patterns)
