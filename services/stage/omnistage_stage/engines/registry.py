"""Finds an engine by its name: entry points of the group `omnistage.engines`, ours and anybody's."""

from importlib.metadata import EntryPoint, entry_points

from omnistage_common.errors import MissingDependency, OmnistageError, SetupError, truncated
from omnistage_common.ids import EngineName
from omnistage_common.pipeline.plan import ParallelPlan
from omnistage_stage.engines.protocol import (
    ENTRY_POINT_GROUP,
    Engine,
    EngineFactory,
    EngineSpec,
    GangMember,
)

__all__ = ["find_engine", "make_engine"]


def find_engine(name: EngineName) -> EngineFactory:
    """The class registered under that name.

    Raises:
        SetupError: No installed package registers it, two do, or the one that does has no such
            class.
        MissingDependency: Its package is installed, something it imports is not.
    """
    found = tuple(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not found:
        known = ", ".join(sorted(entry_points(group=ENTRY_POINT_GROUP).names))
        raise SetupError(
            f"no installed package registers an engine {name!r}; there are: {known}."
            f" Install the package that has an entry point {name!r} in {ENTRY_POINT_GROUP!r}",
            field="engine",
        )
    if len({point.value for point in found}) > 1:
        values = " and ".join(sorted(point.value for point in found))
        raise SetupError(
            f"two packages register an engine {name!r}: {values}; uninstall one", field="engine"
        )
    return _load(found[0])


def make_engine(name: EngineName, spec: EngineSpec) -> Engine:
    """The engine registered under that name, made but not loaded.

    Raises:
        SetupError: As `find_engine`; or it takes no parallelism; or its class refuses the spec, or
            raises whatever else.
    """
    factory = find_engine(name)
    if spec.parallelism != ParallelPlan() and not getattr(factory, "takes_parallelism", False):
        raise SetupError(
            f"engine {name!r} runs on one device; remove `parallelism` of stage {spec.stage}, or use"
            " an argument of the engine",
            field="parallelism",
        )
    try:
        engine = factory(spec)
    except OmnistageError:
        raise
    except Exception as failure:
        raise SetupError(
            truncated(f"engine {name!r} of stage {spec.stage} cannot be made: {failure!r}"),
            field="engine",
        ) from failure
    if spec.gang is not None and not isinstance(engine, GangMember):
        raise SetupError(
            f"engine {name!r} runs on one node; remove `parallelism.nodes` of stage {spec.stage}",
            field="parallelism.nodes",
        )
    return engine


def _load(point: EntryPoint) -> EngineFactory:
    try:
        factory: EngineFactory = point.load()
    except ImportError as missing:
        raise MissingDependency(
            f"engine {point.name!r} ({point.value}) cannot be imported: {missing}", field="engine"
        ) from missing
    except AttributeError as absent:
        raise SetupError(
            f"engine {point.name!r} ({point.value}) is not in its package: {absent}",
            field="engine",
        ) from absent
    return factory
