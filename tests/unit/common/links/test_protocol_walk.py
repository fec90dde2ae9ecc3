"""Both ends of a link on random walks: whatever crosses on the wire, they agree in the end."""

import random
from collections import deque
from collections.abc import Iterable

import pytest

from fakes.frames import open_frame, reference, subscribe_frame, text_output
from omnistage_common.errors import EngineFailed
from omnistage_common.ids import RequestNumber
from omnistage_common.links.frames import (
    Cancel,
    Credit,
    FinishReason,
    FromOpener,
    FromReplica,
    Open,
    Release,
    Subscribe,
    Usage,
)
from omnistage_common.links.protocol import Acceptor, Opener, RequestState

STEPS = 400


class Walk:
    """Two ends, the wire between them in both directions, and a die."""

    def __init__(self, seed: int) -> None:
        self.die = random.Random(seed)  # noqa: S311 - reproducible
        self.opener = Opener()
        self.acceptor = Acceptor()
        self.to_replica: deque[FromOpener] = deque()
        self.to_opener: deque[FromReplica] = deque()
        self.opened: list[RequestNumber] = []
        self.late = 0
        """Frames that came for requests already closed at that end."""

    def step(self) -> None:
        """One end does something, or a frame arrives."""
        steps = (self.open, self.opener_moves, self.replica_moves, self.arrive, self.arrive)
        self.die.choice(steps)()

    def open(self) -> None:
        """The opener opens one more."""
        number, credit = self.opener.next_number(), self.die.randint(0, 3)
        frame: Open | Subscribe = open_frame(number, credit=credit)
        if self.die.random() < 0.3:
            frame = subscribe_frame(number, f"token-{number}", "life", credit=credit)
        self.opener.open(frame)
        self.opened.append(frame.request)
        self.to_replica.append(frame)

    def opener_moves(self) -> None:
        """The opener credits, releases or cancels."""
        number = self._any(self.opened)
        if number is None:
            return
        frame: Credit | Cancel | Release | None = self.die.choice(
            (
                lambda: self.opener.credit(number, self.die.randint(1, 3)),
                lambda: self.opener.release(number),
                lambda: self.opener.cancel(number, "unwanted"),
            )
        )()
        if frame is not None:
            self.to_replica.append(frame)

    def replica_moves(self) -> None:
        """The replica sends something, if the protocol lets it."""
        number = self._any(n for n in self.opened if self.acceptor.state(n) is RequestState.OPEN)
        if number is None:
            return
        move = self.die.random()
        frame: FromReplica | None = None
        if move < 0.6:
            if self.acceptor.credit(number):
                output = reference() if self.die.random() < 0.3 else text_output()
                frame = self.acceptor.data(number, [output])
        elif move < 0.7:
            frame = self.acceptor.progress(number, 1, 2)
        elif move < 0.9:
            frame = self.acceptor.end(number, FinishReason.STOP, Usage())
        else:
            frame = self.acceptor.fail(number, EngineFailed("broke"))
        if frame is not None:
            self.to_opener.append(frame)

    def arrive(self) -> None:
        """The oldest frame of one direction arrives; neither end may find fault with it."""
        if self.to_replica and (not self.to_opener or self.die.random() < 0.5):
            self.late += not self.acceptor.receive(self.to_replica.popleft())
        elif self.to_opener:
            self.late += not self.opener.receive(self.to_opener.popleft())

    def settle(self) -> None:
        """Everything under way arrives."""
        while self.to_replica or self.to_opener:
            self.arrive()

    def finish(self) -> None:
        """The replica ends what is open, the opener lets go of what is held."""
        for number in self.opened:
            if self.acceptor.state(number) is RequestState.OPEN:
                frame = self.acceptor.end(number, FinishReason.STOP, Usage())
                assert frame is not None
                self.to_opener.append(frame)
        self.settle()
        for number in self.opened:
            release = self.opener.release(number)
            if release is not None:
                self.to_replica.append(release)
        self.settle()

    def _any(self, numbers: Iterable[RequestNumber]) -> RequestNumber | None:
        """One of the latest numbers, so that the same request is met again."""
        recent = list(numbers)[-6:]
        return self.die.choice(recent) if recent else None


@pytest.mark.parametrize("seed", range(25))
def test_both_ends_agree_once_everything_has_arrived(seed: int) -> None:
    walk = Walk(seed)

    for _ in range(STEPS):
        walk.step()
    walk.settle()

    assert [walk.opener.state(n) for n in walk.opened] == [
        walk.acceptor.state(n) for n in walk.opened
    ]
    assert walk.late, "frames crossed on the wire"


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_left_once_everything_has_ended(seed: int) -> None:
    walk = Walk(seed)

    for _ in range(STEPS):
        walk.step()
    walk.settle()
    walk.finish()

    assert len(walk.opener) == 0
    assert len(walk.acceptor) == 0


@pytest.mark.parametrize("seed", range(5))
def test_agreement_holds_at_every_pause(seed: int) -> None:
    walk = Walk(seed)

    for _ in range(40):
        for _ in range(10):
            walk.step()
        walk.settle()
        assert len(walk.opener) == len(walk.acceptor)
