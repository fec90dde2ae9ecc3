"""A stage reads its part of a plan without paying for pydantic or YAML."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["omnistage_common", "omnistage_common.pipeline", "omnistage_common.pipeline.plan"]
)
def test_plans_need_neither_pydantic_nor_yaml(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'pydantic', 'yaml', 'rich'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout == "[]\n"
