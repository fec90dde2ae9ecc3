"""The benchmark's command against an API server that lacks something."""

import asyncio
import sys

from fakes.api_server import FakeApiServer


async def test_without_the_definitions_the_remedy_is_named() -> None:
    async with FakeApiServer() as server:
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "omnistage_cli", "bench", "operator", "--pipelines=1"),
            f"--kubeconfig={server.kubeconfig}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, said = await command.communicate()

    assert command.returncode == 1
    assert printed == b""
    assert b"kubectl apply --server-side -f charts/omnistage/definitions" in said
