"""What can be made to go wrong in the fake API server, and for which requests."""

import asyncio
from dataclasses import dataclass, field

__all__ = ["Faults", "Refusal"]


@dataclass(kw_only=True)
class Refusal:
    """An answer that the next requests get instead of the true one."""

    status: int
    times: int = 1
    verb: str = ""
    """Only for this verb; empty for any."""
    resource: str = ""
    """Only for this resource, e.g. `pods`; empty for any."""
    retry_after: str = ""
    """Seconds, for the header."""
    message: str = "made to fail"
    after_write: bool = False
    """The write happens; only its answer is lost."""

    def matches(self, verb: str, resource: str) -> bool:
        """Whether this request gets it."""
        return self.times > 0 and self.verb in {"", verb} and self.resource in {"", resource}


@dataclass(kw_only=True)
class Faults:
    """The switches."""

    refusals: list[Refusal] = field(default_factory=list)
    delays: dict[tuple[str, str], float] = field(default_factory=dict)
    """(verb, resource) -> seconds; empty strings stand for any."""
    held: asyncio.Event | None = None
    """While set to an event that is not set, requests other than watches wait for it."""
    frozen: bool = False
    """Watches stay open and say nothing."""
    drop_bookmarks: bool = False
    answer: bytes | None = None
    """Every request gets this, and status 200."""

    def fail_next(
        self,
        status: int,
        times: int = 1,
        *,
        verb: str = "",
        resource: str = "",
        retry_after: str = "",
        after_write: bool = False,
    ) -> None:
        """The next requests of that kind are refused."""
        self.refusals.append(
            Refusal(
                status=status,
                times=times,
                verb=verb,
                resource=resource,
                retry_after=retry_after,
                after_write=after_write,
            )
        )

    def delay(self, seconds: float, *, verb: str = "", resource: str = "") -> None:
        """Requests of that kind are answered later, from now on."""
        self.delays[verb, resource] = seconds

    def answer_with(self, body: bytes) -> None:
        """Something else than the API server answers, as a proxy with a sign-in page does."""
        self.answer = body

    def hold(self) -> asyncio.Event:
        """Requests wait until the event is set."""
        self.held = asyncio.Event()
        return self.held

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        if self.held is not None:
            self.held.set()
        self.refusals.clear()
        self.delays.clear()
        self.held, self.answer, self.frozen, self.drop_bookmarks = None, None, False, False

    def refusal_for(self, verb: str, resource: str) -> Refusal | None:
        """The refusal that this request gets, used up by one."""
        for refusal in self.refusals:
            if refusal.matches(verb, resource):
                refusal.times -= 1
                return refusal
        return None

    async def hold_up(self, verb: str, resource: str) -> None:
        """Makes the request wait as it is due."""
        for wanted, seconds in self.delays.items():
            if wanted[0] in {"", verb} and wanted[1] in {"", resource}:
                await asyncio.sleep(seconds)
        if self.held is not None:
            await self.held.wait()
