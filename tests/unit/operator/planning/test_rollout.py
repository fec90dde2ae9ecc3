"""Which revision serves and which may go, as a table and on a random walk."""

import random
from dataclasses import dataclass, field

import pytest

from omnistage_common.ids import Revision
from omnistage_common.pipeline.resources import RolloutStrategy
from omnistage_common.pipeline.resources.status import GatewayStatus, RevisionPhase
from omnistage_operator.planning.rollout import Rollout, RolloutStep, next_step

A, B, C = Revision("a"), Revision("b"), Revision("c")
SURGE, IN_PLACE = RolloutStrategy.SURGE, RolloutStrategy.IN_PLACE
PREPARING, SERVING, DRAINING = (
    RevisionPhase.PREPARING,
    RevisionPhase.SERVING,
    RevisionPhase.DRAINING,
)


def says(
    serving: Revision | None,
    *,
    turn: int = 1,
    routable: tuple[Revision, ...] = (),
    in_use: tuple[Revision, ...] = (),
) -> GatewayStatus:
    return GatewayStatus(
        name="gateway-0",
        turn=turn,
        serving=serving,
        routable=routable or ((serving,) if serving else ()),
        in_use=in_use,
    )


def step(
    *,
    target: Revision,
    current: Revision | None,
    plans: set[Revision],
    ready: bool = False,
    strategy: RolloutStrategy = SURGE,
    gateways: tuple[GatewayStatus, ...] = (),
    silent: tuple[str, ...] = (),
) -> RolloutStep:
    return next_step(
        Rollout(
            target=target,
            current=current,
            turn=0 if current is None else 1,
            plans=frozenset(plans),
            target_ready=ready,
            strategy=strategy,
            gateways=gateways,
            silent=silent,
        )
    )


def test_the_first_revision_is_current_at_once() -> None:
    first = step(target=A, current=None, plans=set())

    assert (first.current, first.phases, first.retired) == (A, {A: SERVING}, ())
    assert not first.routable


def test_a_new_target_waits_until_it_can_carry_the_load() -> None:
    waiting = step(target=B, current=A, plans={A, B}, gateways=(says(A),))

    assert waiting.current == A
    assert waiting.phases == {A: SERVING, B: PREPARING}
    assert waiting.retired == ()
    assert waiting.routable


def test_the_old_one_serves_until_every_gateway_reaches_the_new_one() -> None:
    moving = step(target=B, current=A, plans={A, B}, ready=True, gateways=(says(A),))

    assert moving.current == B
    assert moving.phases == {A: SERVING, B: SERVING}
    assert (moving.retired, moving.routable) == ((), False)


@pytest.mark.parametrize(
    ("gateways", "silent", "gone"),
    [
        ((says(B),), (), True),
        ((says(B, in_use=(A,)),), (), False),
        ((says(A, routable=(A, B)),), (), False),
        ((says(B, turn=0, routable=(A, B)),), (), False),
        ((says(B),), ("gateway-1",), False),
        ((), (), True),
    ],
    ids=["done", "requests left", "still sends", "may go back", "one is silent", "no gateway"],
)
def test_an_old_plan_goes_when_no_gateway_can_need_it(
    gateways: tuple[GatewayStatus, ...], silent: tuple[str, ...], *, gone: bool
) -> None:
    after = step(target=B, current=B, plans={A, B}, gateways=gateways, silent=silent)

    assert after.retired == ((A,) if gone else ())
    assert (A in after.phases) is not gone


def test_going_back_half_way_keeps_what_serves_and_drops_what_never_did() -> None:
    back = step(target=A, current=A, plans={A, B}, gateways=(says(A),))

    assert (back.current, back.phases, back.retired) == (A, {A: SERVING}, (B,))


def test_going_back_after_the_switch_needs_no_new_pods() -> None:
    back = step(target=A, current=B, plans={A, B}, ready=True, gateways=(says(B, in_use=(A,)),))

    assert back.current == A
    assert back.retired == ()


def test_an_edit_during_a_rollout_supersedes_the_one_in_between() -> None:
    third = step(target=C, current=A, plans={A, B}, gateways=(says(A),))

    assert third.retired == (B,)
    assert third.phases == {A: SERVING, C: PREPARING}


def test_in_place_the_old_one_is_left_before_the_new_one_is_there() -> None:
    first = step(target=B, current=A, plans={A}, strategy=IN_PLACE, gateways=(says(A, in_use=()),))

    assert first.current == B
    assert first.phases == {A: DRAINING, B: SERVING}
    assert first.retired == ()
    left = step(target=B, current=B, plans={A, B}, strategy=IN_PLACE, gateways=(says(None),))
    assert left.retired == (A,)


def test_a_current_revision_whose_plan_is_lost_gives_way_to_the_target() -> None:
    assert step(target=B, current=A, plans={B}).current == B


@dataclass
class _Gateway:
    """A gateway as the contract says, which sees the operator's word late."""

    name: str
    turn: int = 0
    serving: Revision | None = None
    requests: list[Revision] = field(default_factory=list)

    def look(self, seen: RolloutStep, reached: set[Revision]) -> None:
        self.turn = seen.turn
        if seen.current in reached:
            self.serving = seen.current
        elif self.serving not in seen.phases or seen.phases[self.serving] is DRAINING:
            self.serving = None

    def says(self, reached: set[Revision]) -> GatewayStatus:
        return GatewayStatus(
            name=self.name,
            turn=self.turn,
            serving=self.serving,
            routable=tuple(sorted(reached)),
            in_use=tuple(sorted(set(self.requests) - {self.serving})),
        )


@dataclass
class _World:
    """A pipeline, its pods and two gateways; everything happens in any order."""

    choice: random.Random
    strategy: RolloutStrategy
    target: Revision = A
    current: Revision | None = None
    turn: int = 0
    plans: set[Revision] = field(default_factory=set)
    ready: set[Revision] = field(default_factory=set)
    gateways: list[_Gateway] = field(default_factory=lambda: [_Gateway("g0"), _Gateway("g1")])
    said: dict[str, GatewayStatus] = field(default_factory=dict)
    steps: list[RolloutStep] = field(default_factory=list)

    def reconcile(self) -> None:
        after = next_step(
            Rollout(
                target=self.target,
                current=self.current,
                turn=self.turn,
                plans=frozenset(self.plans),
                target_ready=self.target in self.ready,
                strategy=self.strategy,
                gateways=tuple(self.said[g.name] for g in self.gateways if g.name in self.said),
                silent=tuple(g.name for g in self.gateways if g.name not in self.said),
            )
        )
        self.plans = set(after.phases)
        self.current, self.turn = after.current, after.turn
        self.steps.append(after)
        for gateway in self.gateways:
            needed = {*gateway.requests, gateway.serving} - {None}
            assert needed <= self.plans, "a revision went while a gateway needed it"
        self.ready &= self.plans

    def pods_come(self) -> None:
        self.ready |= {self.choice.choice(sorted(self.plans))} if self.plans else set()

    def edit(self) -> None:
        self.target = self.choice.choice([A, B, C])

    def gateway_looks(self) -> None:
        if self.steps:
            gateway = self.choice.choice(self.gateways)
            gateway.look(self.steps[-1], self.ready & self.plans)

    def gateway_speaks(self) -> None:
        gateway = self.choice.choice(self.gateways)
        if gateway.turn:
            self.said[gateway.name] = gateway.says(self.ready & self.plans)

    def request(self) -> None:
        gateway = self.choice.choice(self.gateways)
        if gateway.serving is not None:
            gateway.requests.append(gateway.serving)

    def request_ends(self) -> None:
        gateway = self.choice.choice(self.gateways)
        if gateway.requests:
            gateway.requests.pop(0)

    def settle(self) -> None:
        for _ in range(6):
            self.reconcile()
            self.ready |= self.plans
            for gateway in self.gateways:
                gateway.look(self.steps[-1], self.ready & self.plans)
                gateway.requests.clear()
                self.said[gateway.name] = gateway.says(self.ready & self.plans)


@pytest.mark.parametrize("strategy", [SURGE, IN_PLACE])
@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_no_request_loses_its_revision_and_all_ends_at_the_target(
    seed: int, strategy: RolloutStrategy
) -> None:
    world = _World(choice=random.Random(seed), strategy=strategy)  # noqa: S311 - a walk, not a secret
    moves = [
        world.reconcile,
        world.pods_come,
        world.edit,
        world.gateway_looks,
        world.gateway_speaks,
        world.request,
        world.request_ends,
    ]
    for _ in range(400):
        world.choice.choice(moves)()

    world.settle()

    assert world.current == world.target
    assert world.plans == {world.target}
    assert world.steps[-1].routable
