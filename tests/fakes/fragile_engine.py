"""An engine that breaks at its first request and does not recover."""

from omnistage_stage.engines.protocol import EngineRequest, EngineResult, EngineSpec, Outputs

__all__ = ["FragileEngine"]


class FragileEngine:
    """Loads and probes well until the first request."""

    def __init__(self, _spec: EngineSpec) -> None:
        self._broken = False

    async def load(self) -> None:
        """Has nothing to load."""

    async def probe(self) -> None:
        """Fails once a request did."""
        if self._broken:
            raise RuntimeError("the device is gone")

    async def run(self, _request: EngineRequest, _outputs: Outputs) -> EngineResult:
        """Breaks."""
        self._broken = True
        raise RuntimeError("the device fell off the bus")

    async def close(self) -> None:
        """Has nothing to let go of."""
