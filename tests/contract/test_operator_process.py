"""A real operator process against an API server: start, health, work, leadership, stop."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import yaml

from fakes.api_server import FakeApiServer
from fakes.controlled import until
from fakes.stage_process import free_port
from omnistage_common.cluster.kinds import DEPLOYMENTS, LEASES
from omnistage_common.cluster.manifests import ObjectKey

SHIPPED = Path(__file__).parents[2] / "deploy" / "pipelines" / "simulated-omni.yaml"
LEASE = ObjectKey("omnistage", "omnistage-operator")


@asynccontextmanager
async def operator(
    server: FakeApiServer, *more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process, and the URL of what it tells of itself."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "omnistage_operator", "--stage-image", "stage:1"),
        *("--kubeconfig", str(server.kubeconfig), "--metrics", f"127.0.0.1:{port}", *more),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def leads(server: FakeApiServer) -> None:
    """Returns when an operator holds the lease."""
    await until(lambda: (server.get(LEASES, LEASE) or {}).get("spec", {}).get("holderIdentity"))


def put_pipeline(server: FakeApiServer) -> None:
    for each in yaml.safe_load_all(SHIPPED.read_text()):
        if each["kind"] == "InferencePipeline":
            each["metadata"]["namespace"] = "models"
        server.put(each)


async def test_it_leads_works_tells_of_itself_and_gives_the_lease_back() -> None:
    async with FakeApiServer() as server, operator(server) as (process, url):
        await leads(server)
        put_pipeline(server)
        await until(lambda: len(server.all(DEPLOYMENTS)) == 3)

        async with httpx.AsyncClient() as client:
            alive, ready = await client.get(f"{url}/healthz"), await client.get(f"{url}/readyz")
            metrics = await client.get(f"{url}/metrics")
        process.send_signal(signal.SIGTERM)

        assert await process.wait() == 0
        assert (alive.status_code, ready.status_code) == (200, 200)
        assert 'omnistage_operator_reconcile_total{controller="pipeline"' in metrics.text
        assert "omnistage_operator_leader 1.0" in metrics.text
        assert server.need(LEASES, LEASE)["spec"]["holderIdentity"] == ""


async def test_a_second_operator_waits_ready_and_takes_over_at_once() -> None:
    async with FakeApiServer() as server, operator(server) as (first, _):
        await leads(server)
        holder = server.need(LEASES, LEASE)["spec"]["holderIdentity"]
        async with operator(server) as (_, url), httpx.AsyncClient() as client:
            answers = [0]

            async def is_ready() -> None:
                while answers[-1] != 200:
                    try:
                        answers.append((await client.get(f"{url}/readyz")).status_code)
                    except httpx.ConnectError:
                        await asyncio.sleep(0.05)

            await asyncio.wait_for(is_ready(), 30)
            assert "omnistage_operator_leader 0.0" in (await client.get(f"{url}/metrics")).text
            first.send_signal(signal.SIGTERM)
            await first.wait()

            await until(
                lambda: server.need(LEASES, LEASE)["spec"]["holderIdentity"] not in {"", holder}
            )


async def test_without_an_api_server_it_says_so_and_ends() -> None:
    async with FakeApiServer() as server:
        kubeconfig = server.kubeconfig.read_text()
    gone = server.kubeconfig.with_name("gone")
    gone.parent.mkdir(parents=True, exist_ok=True)
    gone.write_text(kubeconfig)

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "omnistage_operator", "--stage-image", "stage:1"),
        *("--kubeconfig", str(gone), "--metrics", f"127.0.0.1:{free_port()}"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()

    assert process.returncode == 3
    assert b"cannot start" in said
