"""Real processes: one pipeline for tests that leave it as it was, fresh ones for the others."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fakes.deployment import Deploy, Deployment, deployed, plan_from_text, resolved_plan
from fakes.pipelines import listening_pipeline
from omnistage_common.pipeline.plan import PipelinePlan


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`simulated-omni` as it ships. It is shared: leave it as it was."""
    with deployed(resolved_plan(), tmp_path_factory.mktemp("omni")) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Two thinkers of 10 ms a step and one speaker. Shared: leave all of them serving and idle."""
    plan = plan_from_text(listening_pipeline(replicas=2, step_seconds=0.01))
    with deployed(plan, tmp_path_factory.mktemp("pair")) as deployment:
        yield deployment


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    """Starts deployments of a test's own, and ends them."""
    with ExitStack() as stack:

        def start(plan: PipelinePlan, *arguments: str) -> Deployment:
            return stack.enter_context(deployed(plan, tmp_path, *arguments))

        yield start
