"""`python -m omnistage_gateway`: one gateway process, until a stop signal.

Exit status: 0 drained, 2 usage, 3 nothing could be started.
"""

import sys
from typing import Final

import structlog
import uvloop

from omnistage_common.errors import MissingDependency, SetupError
from omnistage_common.pipeline.plan import read_plan
from omnistage_common.processes import exit_with_parent
from omnistage_common.telemetry import configure_logging, new_registry
from omnistage_gateway.discovery.cluster import ClusterDiscovery
from omnistage_gateway.discovery.files import FileDiscovery
from omnistage_gateway.metrics import GatewayMetrics
from omnistage_gateway.pipelines.catalog import Catalog
from omnistage_gateway.replicas.fleet import Fleet
from omnistage_gateway.server import GatewayServer
from omnistage_gateway.settings import (
    ClusterSource,
    FileSource,
    GatewaySettings,
    parse_settings,
    read_endpoints,
)

__all__ = ["main"]

SETUP_FAILED: Final = 3


def main() -> None:
    """Runs the command line."""
    settings = parse_settings()
    if settings.exit_with_parent:
        exit_with_parent()
    configure_logging(component="gateway", level=settings.log_level)
    log = structlog.get_logger()
    try:
        uvloop.run(_serve(settings))
    except SetupError as error:
        log.error("cannot start", reason=error.code, error=error.message, field=error.field)  # noqa: TRY400 - the message is the product
        sys.exit(SETUP_FAILED)


async def _serve(settings: GatewaySettings) -> None:
    if isinstance(settings.source, ClusterSource):
        await _serve_cluster(settings, settings.source)
    else:
        await _serve_files(settings, settings.source)


async def _serve_files(settings: GatewaySettings, source: FileSource) -> None:
    plan, endpoints = read_plan(source.plan), read_endpoints(source.endpoints)

    def discovery(catalog: Catalog, fleet: Fleet, _: GatewayMetrics) -> FileDiscovery:
        return FileDiscovery(plan, endpoints, catalog=catalog, fleet=fleet)

    await GatewayServer(settings, discovery, new_registry()).run()


async def _serve_cluster(settings: GatewaySettings, source: ClusterSource) -> None:
    try:
        # Imported on first use: a gateway outside of a cluster does without the client.
        from omnistage_gateway.discovery.kubernetes_door import connected  # noqa: PLC0415
    except ImportError as missing:
        raise MissingDependency(
            f"--cluster needs the Kubernetes client ({missing}); install `omnistage[gateway]`"
        ) from missing
    registry = new_registry()
    async with connected(source, registry) as cluster:

        def discovery(catalog: Catalog, fleet: Fleet, metrics: GatewayMetrics) -> ClusterDiscovery:
            return ClusterDiscovery(
                cluster,
                catalog=catalog,
                fleet=fleet,
                gateway=source.name,
                refused=lambda kind: metrics.left_out(kind.value),
            )

        await GatewayServer(settings, discovery, registry).run()


if __name__ == "__main__":
    main()
