"""One real cluster for all tests of this folder, and a fresh namespace for each of them.

With `KUBECONFIG` the tests run on that cluster, which may be the laboratory that `make cluster`
keeps running. Without it they start a laboratory of their own and stop it in the end. It is shared:
a test leaves nothing behind but what is in its namespace.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from cluster.laboratory.access import Cluster, at_hand
from cluster.laboratory.building import Report
from omnistage_common.errors import SetupError

_HERE: Final = Path(__file__).parent
_SKIP: Final = "OMNISTAGE_SKIP_CLUSTER"
_TEST_SECONDS: Final = 120


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder; the time to start a cluster is not taken from a test's."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_TEST_SECONDS, func_only=True))


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """Shows a line to whoever watches the tests run, whatever pytest captures."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    terminal = pytestconfig.pluginmanager.getplugin("terminalreporter")

    def show(line: str) -> None:
        if capture is not None and terminal is not None:
            with capture.global_and_fixture_disabled():
                terminal.write_line(f"cluster: {line}")

    return show


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, report: Report) -> Iterator[Cluster]:
    """A running cluster; without one its tests fail and say what is missing."""
    if os.environ.get(_SKIP) == "1":
        pytest.skip(f"{_SKIP}=1")
    state = tmp_path_factory.mktemp("laboratory")
    with ExitStack() as stack:
        try:
            found = stack.enter_context(at_hand(state, report))
        except SetupError as error:
            remedy = f"(or set {_SKIP}=1 to leave these tests out)"
            pytest.fail(f"{error.message}\n{remedy}", pytrace=False)
        yield found


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own, deleted with all that is in it."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    cluster.call("create", "namespace", name)
    cluster.wait("create", "serviceaccount/default", f"--namespace={name}")
    yield name
    cluster.call("delete", "namespace", name, "--wait=false")
