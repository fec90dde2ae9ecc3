"""Pipelines and their revisions by model name: who serves, who is refused, who may go when."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fakes.graphs import graph_plan
from fakes.scripted_link import ScriptedLink
from omnistage_common.errors import ModelNotFound, StageUnavailable
from omnistage_common.ids import ModelName, Revision, StageName
from omnistage_common.links.frames import Phase
from omnistage_gateway.pipelines.catalog import LONGEST_TIMEOUT, Catalog
from omnistage_gateway.pipelines.pipeline import Pipeline, PipelineKey
from omnistage_gateway.pipelines.serving import Acknowledgement
from omnistage_gateway.replicas.pool import StagePool

OLD, NEW = Revision("old"), Revision("new")
STAGE = StageName("thinker")


class Revised:
    """A revision of a pipeline of one stage, whose only replica a test makes ready or not."""

    def __init__(
        self,
        name: str = "graph",
        revision: Revision = OLD,
        *,
        models: tuple[str, ...] = (),
        namespace: str = "default",
        phase: Phase | None = Phase.READY,
        request_seconds: float = 30.0,
    ) -> None:
        plan = graph_plan(
            {STAGE: "conversation"},
            outputs={"thinker.text": "text"},
            name=name,
            request_seconds=request_seconds,
        )
        served = tuple(map(ModelName, models)) or plan.served_names
        self.link = ScriptedLink(STAGE, phase=phase)
        self.pool = StagePool(STAGE, [self.link])
        self.link.on_phase = self.pool.refresh
        self.let_go = 0
        self.pipeline = Pipeline(
            replace(plan, revision=revision, served_names=served, namespace=namespace),
            {STAGE: self.pool},
            self._let_go,
        )

    @property
    def key(self) -> PipelineKey:
        """Of its pipeline."""
        return self.pipeline.key

    def _let_go(self) -> None:
        self.let_go += 1


def catalog_of(*revised: Revised) -> Catalog:
    """A catalog in which these are current."""
    catalog = Catalog()
    for each in revised:
        catalog.put(each.pipeline)
        catalog.direct(each.key, each.pipeline.revision)
    return catalog


def served(catalog: Catalog, model: str = "graph") -> Pipeline:
    """What serves a model."""
    return catalog.find(ModelName(model))


def test_several_pipelines_serve_by_their_names() -> None:
    one, other = Revised("one"), Revised("other", models=("a", "b"))
    catalog = catalog_of(one, other)

    assert served(catalog, "one") is one.pipeline
    assert served(catalog, "a") is served(catalog, "b") is other.pipeline
    assert catalog.models == ("one", "a", "b")


@pytest.mark.parametrize("there", [("one", "other"), ()])
def test_a_name_that_nobody_has_is_not_found(there: tuple[str, ...]) -> None:
    catalog = catalog_of(*map(Revised, there))

    for ask in (catalog.find, catalog.listing):
        with pytest.raises(ModelNotFound, match=", ".join(there) or "none yet"):
            ask(ModelName("graph"))


def test_a_plan_without_its_pipeline_serves_nobody() -> None:
    catalog = Catalog()
    catalog.put(Revised().pipeline)

    with pytest.raises(ModelNotFound):
        served(catalog)
    assert catalog.acknowledgement(Revised().key) is None


def test_a_pipeline_without_its_plan_is_not_known_by_name_yet() -> None:
    catalog = Catalog()
    catalog.direct(Revised().key, OLD)

    with pytest.raises(ModelNotFound):
        served(catalog)
    catalog.put(Revised().pipeline)
    assert served(catalog).revision == OLD


def test_until_its_stages_are_ready_it_is_listed_and_says_what_it_waits_for() -> None:
    revised = Revised(phase=Phase.LOADING)
    catalog = catalog_of(revised)

    with pytest.raises(StageUnavailable, match="thinker-0 is loading") as refused:
        served(catalog)
    assert refused.value.retry_after is not None
    assert catalog.listing(ModelName("graph")).pipeline is revised.pipeline

    revised.link.says_phase(Phase.READY)
    assert served(catalog) is revised.pipeline


def test_until_the_operator_has_spoken_it_is_unavailable() -> None:
    catalog = Catalog()
    catalog.put(Revised().pipeline)
    catalog.direct(Revised().key, None)

    with pytest.raises(StageUnavailable, match="no revision of pipeline default/graph"):
        served(catalog)


def test_what_served_and_lost_its_replicas_still_serves_by_name() -> None:
    """So that the refusal comes from the stage, and says why."""
    revised = Revised()
    catalog = catalog_of(revised)

    revised.link.breaks()

    assert served(catalog) is revised.pipeline


def test_new_requests_move_when_the_new_revision_is_routable_and_current() -> None:
    old, new = Revised(), Revised(revision=NEW, phase=None)
    catalog = catalog_of(old)
    catalog.put(new.pipeline)
    assert served(catalog) is old.pipeline
    catalog.direct(old.key, NEW)
    assert served(catalog) is old.pipeline

    new.link.says_phase(Phase.READY)

    assert served(catalog) is new.pipeline


def test_a_revision_that_drains_is_left_though_nothing_takes_its_place() -> None:
    old = Revised()
    catalog = catalog_of(old)

    catalog.direct(old.key, NEW, draining={OLD})

    with pytest.raises(StageUnavailable):
        served(catalog)
    assert catalog.models == ("graph",)


def test_a_revision_is_let_go_when_its_plan_and_its_last_request_are_gone() -> None:
    old, new = Revised(), Revised(revision=NEW)
    catalog = catalog_of(old, new)
    old.pipeline.enter()
    old.pipeline.enter()

    catalog.drop(old.key, OLD)
    old.pipeline.leave()
    assert old.let_go == 0
    assert set(catalog.pipelines()) == {old.pipeline, new.pipeline}
    old.pipeline.leave()

    assert old.let_go == 1
    assert set(catalog.pipelines()) == {new.pipeline}


def test_a_revision_that_nobody_is_on_is_let_go_at_once() -> None:
    revised = Revised()
    catalog = catalog_of(revised)

    catalog.drop(revised.key, OLD)
    catalog.drop(revised.key, OLD)
    catalog.drop(revised.key, NEW)

    assert revised.let_go == 1
    with pytest.raises(ModelNotFound):
        served(catalog)


def test_a_plan_that_is_there_stays_when_it_comes_again() -> None:
    first, again = Revised(), Revised()
    catalog = catalog_of(first)

    catalog.put(again.pipeline)

    assert served(catalog) is first.pipeline
    assert (first.let_go, again.let_go) == (0, 1)


def test_a_plan_that_comes_back_while_requests_are_on_its_first_life() -> None:
    first, again = Revised(), Revised()
    catalog = catalog_of(first)
    first.pipeline.enter()
    catalog.drop(first.key, OLD)

    catalog.put(again.pipeline)

    assert served(catalog) is again.pipeline
    first.pipeline.leave()
    assert (first.let_go, again.let_go) == (1, 0)


def test_a_pipeline_that_is_gone_is_not_found_while_its_requests_end() -> None:
    revised = Revised()
    catalog = catalog_of(revised)
    revised.pipeline.enter()

    catalog.withdraw(revised.key)
    with pytest.raises(ModelNotFound):
        served(catalog)
    catalog.drop(revised.key, OLD)
    assert revised.let_go == 0
    revised.pipeline.leave()

    assert revised.let_go == 1
    assert list(catalog.pipelines()) == []
    catalog.withdraw(revised.key)


def test_the_oldest_pipeline_has_a_name_that_several_claim() -> None:
    young = Revised(models=("shared", "mine"), namespace="a")
    old = Revised(models=("shared",), namespace="b", phase=None)
    catalog = Catalog()
    catalog.put(young.pipeline)
    catalog.direct(young.key, OLD, created=20)
    assert served(catalog, "shared") is young.pipeline

    catalog.put(old.pipeline)
    catalog.direct(old.key, OLD, created=10)

    with pytest.raises(StageUnavailable):  # The name is its own, although it cannot serve.
        served(catalog, "shared")
    assert served(catalog, "mine") is young.pipeline
    assert catalog.listing(ModelName("shared")).created == 10

    catalog.withdraw(old.key)
    assert served(catalog, "shared") is young.pipeline


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_equal_age_the_first_by_name_has_it(order: tuple[str, str]) -> None:
    catalog = catalog_of(*(Revised(namespace=namespace) for namespace in order))

    assert served(catalog).key.namespace == "a"


def test_a_revision_with_other_names_serves_by_those() -> None:
    old, new = Revised(models=("before", "both")), Revised(revision=NEW, models=("both", "after"))
    catalog = catalog_of(old)
    catalog.put(new.pipeline)
    assert catalog.models == ("before", "both")

    catalog.direct(old.key, NEW)

    assert set(catalog.models) == {"both", "after"}
    assert served(catalog, "both") is served(catalog, "after") is new.pipeline


def test_what_changes_is_said_once() -> None:
    said: list[tuple[PipelineKey, Acknowledgement]] = []
    old, new = Revised(), Revised(revision=NEW)
    catalog = catalog_of(old)
    catalog.on_change = lambda key, what: said.append((key, what))

    catalog.direct(old.key, OLD)
    old.link.says_phase(Phase.READY)
    old.pipeline.enter()
    assert said == []
    catalog.put(new.pipeline)
    catalog.direct(old.key, NEW, turn=1)
    old.pipeline.leave()
    catalog.drop(old.key, OLD)

    assert [what for _, what in said] == [
        Acknowledgement(serving=OLD, routable=(NEW, OLD)),
        Acknowledgement(turn=1, serving=NEW, routable=(NEW, OLD), in_use=(OLD,)),
        Acknowledgement(turn=1, serving=NEW, routable=(NEW, OLD)),
        Acknowledgement(turn=1, serving=NEW, routable=(NEW,)),
    ]
    assert catalog.acknowledgement(old.key) == said[-1][1]


def test_a_revision_that_serves_again_is_not_in_use_only() -> None:
    old, new = Revised(), Revised(revision=NEW)
    catalog = catalog_of(old, new)
    old.pipeline.enter()

    catalog.direct(old.key, OLD)
    catalog.direct(old.key, NEW)
    catalog.direct(old.key, OLD)
    old.pipeline.leave()
    old.pipeline.enter()

    said = catalog.acknowledgement(old.key)
    assert said is not None
    assert (said.serving, said.in_use) == (OLD, ())


@pytest.mark.parametrize(
    ("seconds", "longest"), [((), LONGEST_TIMEOUT), ((5.0,), 5.0), ((5.0, 90.0, 7.0), 90.0)]
)
def test_the_longest_timeout_is_that_of_any_pipeline(
    seconds: tuple[float, ...], longest: float
) -> None:
    catalog = catalog_of(*(Revised(f"p{each}", request_seconds=each) for each in seconds))

    assert catalog.longest_timeout == longest


def test_a_timeout_that_is_gone_counts_no_more() -> None:
    short, long = Revised("a", request_seconds=5), Revised("b", request_seconds=90)
    catalog = catalog_of(short, long)
    assert catalog.longest_timeout == 90

    catalog.drop(long.key, OLD)

    assert catalog.longest_timeout == 5


@pytest.mark.parametrize(
    "event",
    [
        lambda catalog, key: catalog.drop(key, OLD),
        lambda catalog, key: catalog.withdraw(key),
    ],
)
def test_what_was_never_there_may_go(event: Callable[[Catalog, PipelineKey], None]) -> None:
    catalog = Catalog()

    event(catalog, Revised().key)

    assert list(catalog.pipelines()) == []
