"""`python -m omnistage_gateway`: one gateway process, until a stop signal.

Exit status: 0 drained, 2 usage, 3 nothing could be started.
"""

import sys
from typing import Final

import structlog
import uvloop

from omnistage_common.errors import SetupError
from omnistage_common.pipeline.plan import read_plan
from omnistage_common.processes import exit_with_parent
from omnistage_common.telemetry import configure_logging
from omnistage_gateway.server import GatewayServer
from omnistage_gateway.settings import GatewaySettings, parse_settings, read_endpoints

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
    plan = read_plan(settings.plan)
    await GatewayServer(settings, plan, read_endpoints(settings.endpoints)).run()


if __name__ == "__main__":
    main()
