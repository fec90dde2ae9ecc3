"""What an operator tells others of itself by HTTP: whether it lives, whether it is ready, its figures.

Alive means that the watches give signs: an operator that answers here while its watches are dead looks
healthy and does nothing. Ready means that every kind was listed; it does not depend on leadership, for
a second operator that waits is ready to take over.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from omnistage_common.addresses import Address
from omnistage_common.cluster.caches import Caches
from omnistage_common.errors import SetupError

__all__ = ["SILENT_FOR_S", "serve_about"]

SILENT_FOR_S: Final = 600.0
"""Seconds without a sign of a watch after which the process is better started anew: by then it has
tried to watch again several times."""


@asynccontextmanager
async def serve_about(
    address: Address, caches: Caches, registry: CollectorRegistry
) -> AsyncIterator[None]:
    """Serves `/healthz`, `/readyz` and `/metrics` within the context.

    Raises:
        SetupError: The address cannot be listened on.
    """

    async def healthz(_: web.Request) -> web.Response:
        silence = caches.stalest()
        alive = silence < SILENT_FOR_S
        return web.Response(
            status=200 if alive else 503, text=f"the quietest watch: {silence:.0f} s ago\n"
        )

    async def readyz(_: web.Request) -> web.Response:
        ready = caches.is_synced
        return web.Response(status=200 if ready else 503, text="ready\n" if ready else "listing\n")

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(registry), headers=headers)

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
    except OSError as taken:
        await runner.cleanup()
        raise SetupError(
            f"cannot listen on {address}: {taken.strerror}", field="--metrics"
        ) from taken
    try:
        yield
    finally:
        await runner.cleanup()
