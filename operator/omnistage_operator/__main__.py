"""`python -m omnistage_operator`: one operator process, until a stop signal.

Exit status: 0 stopped, 2 usage, 3 nothing could be started.
"""

import sys
from typing import Final

import structlog
import uvloop

from omnistage_common.errors import OmnistageError
from omnistage_common.telemetry import configure_logging
from omnistage_operator.server import OperatorServer
from omnistage_operator.settings import ProcessSettings, parse_settings

__all__ = ["main"]

SETUP_FAILED: Final = 3


def main() -> None:
    """Runs the command line."""
    settings = parse_settings()
    configure_logging(component="operator", level=settings.log_level)
    try:
        uvloop.run(_serve(settings))
    except OmnistageError as error:
        structlog.get_logger().error(
            "cannot start", reason=error.code, error=error.message, field=error.field
        )
        sys.exit(SETUP_FAILED)


async def _serve(settings: ProcessSettings) -> None:
    await OperatorServer(settings).run()


if __name__ == "__main__":
    main()
