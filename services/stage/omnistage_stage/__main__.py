"""`python -m omnistage_stage`: one replica of one stage, until a stop signal.

Exit status: 0 drained, 1 the engine is beyond use, 2 usage, 3 nothing could be started.
"""

import sys
from typing import Final

import structlog
import uvloop

from omnistage_common.errors import OmnistageError, SetupError
from omnistage_common.pipeline.assignments import Assignment, read_assignment
from omnistage_common.processes import exit_with_parent
from omnistage_common.telemetry import configure_logging
from omnistage_stage.following import Follower
from omnistage_stage.server import StageServer
from omnistage_stage.settings import StageSettings, parse_settings

__all__ = ["main"]

SETUP_FAILED: Final = 3
ENGINE_FAILED: Final = 1


def main() -> None:
    """Runs the command line."""
    settings = parse_settings()
    if settings.exit_with_parent:
        exit_with_parent()
    configure_logging(component=settings.replica or "stage", level=settings.log_level)
    log = structlog.get_logger()
    try:
        uvloop.run(_serve(settings, read_assignment(settings.assignment)))
    except SetupError as error:
        log.error("cannot start", reason=error.code, error=error.message, field=error.field)  # noqa: TRY400 - the message is the product
        sys.exit(SETUP_FAILED)
    except OmnistageError as error:
        log.error("engine failed", reason=error.code, error=error.message)  # noqa: TRY400
        sys.exit(ENGINE_FAILED)


async def _serve(settings: StageSettings, assignment: Assignment) -> None:
    if settings.gang is not None and settings.gang.rank > 0:
        await Follower(settings, assignment).run()
    else:
        await StageServer(settings, assignment).run()


if __name__ == "__main__":
    main()
