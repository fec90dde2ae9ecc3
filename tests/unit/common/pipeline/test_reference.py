"""The committed reference page is what the models say."""

import subprocess
import sys
from pathlib import Path

from omnistage_common.pipeline.fields import model_at, outside_fields
from omnistage_common.pipeline.reference import reference_page
from omnistage_common.pipeline.resources import KINDS

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "pipeline-resources.md"


def test_the_committed_page_is_in_step_with_the_models() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run: python -m omnistage_common.pipeline.reference > docs/reference/pipeline-resources.md"
    )


def test_the_page_is_what_the_command_prints() -> None:
    command = [sys.executable, "-m", "omnistage_common.pipeline.reference"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")

    assert done.stdout == reference_page()


def test_the_page_has_every_field_of_every_kind_and_no_broken_link() -> None:
    page = reference_page()

    for name, kind in KINDS.items():
        assert f"\n## {name}\n" in page
        for field in outside_fields(model_at(kind, ["spec"])):
            assert f"| `{field}` |" in page
    headings = {line.lstrip("# ").lower() for line in page.splitlines() if line.startswith("#")}
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert links <= headings
