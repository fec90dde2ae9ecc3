"""The life of one local process as a state machine without I/O and without a clock.

    STARTING ──answers──▶ LOADING ──serves──▶ READY
       ▲                     │                  │
       │                     ▼ exits            ▼ exits
       └────retry due──── BACKING_OFF ◀─────────┘      LOADING, STARTING ──▶ GIVEN_UP
                             │
    any ──stop──▶ STOPPING ──exits──▶ STOPPED          (BACKING_OFF ──stop──▶ STOPPED)

A process that ends without having been asked to has crashed, whatever its exit code. It is started
again after a delay that doubles with every crash in a row; having served for a while ends the row.
One that has never served is given up after a number of crashes, and at once when it says itself
(exit code 3) that its setup is wrong. One that has served before is never given up: what it needs is
there, and its clients wait for it.

Whoever drives the machine starts and stops processes; this file must not know how. Observations
race with requests to stop, so those that come too late are ignored; those that cannot be are errors.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

__all__ = [
    "CANNOT_START",
    "SETUP_EXIT_CODE",
    "Event",
    "Exited",
    "Loading",
    "ReplicaPhase",
    "RestartPolicy",
    "RetryDue",
    "Serving",
    "StopRequested",
    "Supervision",
    "advance",
]

SETUP_EXIT_CODE: Final = 3
"""How a stage or gateway says that it cannot start as it was told to."""

CANNOT_START: Final = 127
"""Stands for the exit code of a program that could not be executed, as shells have it."""


class ReplicaPhase(Enum):
    """Where a process is in its life; the value is what people read."""

    STARTING = "starting"
    """Its process runs and has not answered yet."""
    LOADING = "loading"
    """It answers and does not serve yet, or not at the moment."""
    READY = "ready"
    BACKING_OFF = "restarting"
    """It crashed; there is no process until the retry is due."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    GIVEN_UP = "given up"

    @property
    def final(self) -> bool:
        """Whether nothing happens any more."""
        return self in {ReplicaPhase.STOPPED, ReplicaPhase.GIVEN_UP}


class RestartPolicy(Struct, frozen=True, kw_only=True):
    """When to start a crashed process again."""

    first_delay: float = 0.5
    """Seconds to wait after the first crash of a row."""
    max_delay: float = 10.0
    """Seconds to wait at most."""
    steady_after: float = 30.0
    """Seconds of serving that end a row of crashes."""
    max_crashes: int = 5
    """Crashes in a row after which a process that never served is given up."""

    def delay(self, crashes: int) -> float:
        """Seconds to wait after that many crashes in a row."""
        return min(self.first_delay * 2.0 ** (crashes - 1), self.max_delay)


class Loading(Struct, frozen=True, kw_only=True):
    """The process answers and does not serve."""


class Serving(Struct, frozen=True, kw_only=True):
    """The process serves."""

    at: float
    """Seconds on the driver's clock."""


class Exited(Struct, frozen=True, kw_only=True):
    """The process is gone, or could not be started."""

    code: int
    """Its exit code; minus the signal number when a signal ended it."""
    at: float
    """Seconds on the driver's clock."""


class RetryDue(Struct, frozen=True, kw_only=True):
    """The delay is over and a new process is being started."""


class StopRequested(Struct, frozen=True, kw_only=True):
    """The process is not wanted any more."""


Event = Loading | Serving | Exited | RetryDue | StopRequested
"""What can happen to a process."""


class Supervision(Struct, frozen=True, kw_only=True):
    """What is known of a process."""

    phase: ReplicaPhase = ReplicaPhase.STARTING
    crashes: int = 0
    """Crashes in a row."""
    restarts: int = 0
    """How often it was started again, ever."""
    serving_since: float | None = None
    """When the present process served first; None when it has not."""
    has_served: bool = False
    """Whether any process of this row of lives has served."""
    delay: float = 0.0
    """Seconds until the retry; has a meaning while backing off."""
    last_exit: int | None = None
    """Exit code of the last crash."""


def _loads(state: Supervision, _event: Loading, _policy: RestartPolicy) -> Supervision:
    return replace(state, phase=ReplicaPhase.LOADING)


def _serves(state: Supervision, event: Serving, _policy: RestartPolicy) -> Supervision:
    since = event.at if state.serving_since is None else state.serving_since
    return replace(state, phase=ReplicaPhase.READY, serving_since=since, has_served=True)


def _crashes(state: Supervision, event: Exited, policy: RestartPolicy) -> Supervision:
    served = 0.0 if state.serving_since is None else event.at - state.serving_since
    crashes = 1 if served >= policy.steady_after else state.crashes + 1
    hopeless = crashes >= policy.max_crashes or event.code == SETUP_EXIT_CODE
    phase = ReplicaPhase.GIVEN_UP if hopeless and not state.has_served else ReplicaPhase.BACKING_OFF
    return replace(
        state,
        phase=phase,
        crashes=crashes,
        serving_since=None,
        delay=policy.delay(crashes),
        last_exit=event.code,
    )


def _retries(state: Supervision, _event: RetryDue, _policy: RestartPolicy) -> Supervision:
    return replace(state, phase=ReplicaPhase.STARTING, restarts=state.restarts + 1, delay=0.0)


def _stops(state: Supervision, _event: StopRequested, _policy: RestartPolicy) -> Supervision:
    return replace(state, phase=ReplicaPhase.STOPPING)


def _stopped(state: Supervision, _event: Event, _policy: RestartPolicy) -> Supervision:
    return replace(state, phase=ReplicaPhase.STOPPED, serving_since=None, delay=0.0)


def _stays(state: Supervision, _event: Event, _policy: RestartPolicy) -> Supervision:
    return state


_RUNNING: Final = (ReplicaPhase.STARTING, ReplicaPhase.LOADING, ReplicaPhase.READY)

_TRANSITIONS: Final[dict[tuple[ReplicaPhase, type[Event]], Callable[..., Supervision]]] = {
    **{(phase, Loading): _loads for phase in _RUNNING},
    **{(phase, Serving): _serves for phase in _RUNNING},
    **{(phase, Exited): _crashes for phase in _RUNNING},
    **{(phase, StopRequested): _stops for phase in _RUNNING},
    (ReplicaPhase.BACKING_OFF, RetryDue): _retries,
    (ReplicaPhase.BACKING_OFF, StopRequested): _stopped,
    (ReplicaPhase.STOPPING, Loading): _stays,
    (ReplicaPhase.STOPPING, Serving): _stays,
    (ReplicaPhase.STOPPING, StopRequested): _stays,
    (ReplicaPhase.STOPPING, Exited): _stopped,
    (ReplicaPhase.STOPPED, StopRequested): _stays,
    (ReplicaPhase.GIVEN_UP, StopRequested): _stays,
}


def advance(state: Supervision, event: Event, policy: RestartPolicy) -> Supervision:
    """What is known after an event.

    Raises:
        ValueError: The event cannot happen in this phase; the driver has a defect.
    """
    step = _TRANSITIONS.get((state.phase, type(event)))
    if step is None:
        raise ValueError(
            f"{type(event).__name__} cannot happen to a process that is {state.phase.value}"
        )
    return step(state, event, policy)
