"""The objects that `omnistage bench operator` works on, as values: what is made before the clock runs.

All of it has one name, of this run alone, so that two runs in one cluster do not meet and a glance at
the cluster tells what belongs together. It knows no connection.
"""

import secrets
from typing import Final

from msgspec import Struct

from omnistage_cli.bench.operator.simulated_nodes import SimulatedNode
from omnistage_common.cluster.kinds import (
    INFERENCE_PIPELINES,
    PIPELINE_TEMPLATES,
    PODS,
    STAGE_RUNTIMES,
    STAGES,
    ResourceKind,
)
from omnistage_common.cluster.manifests import Manifest, ObjectKey

__all__ = ["DEFINED", "DEFINITIONS", "NAMESPACES", "STAGE_NAMES", "Scene", "new_scene"]

NAMESPACES: Final = ResourceKind(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False
)
DEFINITIONS: Final = ResourceKind(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
DEFINED: Final = tuple(
    ObjectKey("", str(kind))
    for kind in (INFERENCE_PIPELINES, PIPELINE_TEMPLATES, STAGE_RUNTIMES, STAGES)
)
"""Definitions that must be installed."""

STAGE_NAMES: Final = ("thinker", "talker", "code2wav")
"""Of each pipeline."""

_POOL: Final = "omnistage.io/bench"
"""Label of the run's namespaces and nodes, and taint of the nodes."""
_PIPELINES_PER_NAMESPACE: Final = 50
"""The cluster's own controllers go through all Services and pods of a namespace for each pod that
changes: a thousand pipelines in one would measure that, and nobody keeps them so."""
_PODS_PER_NODE: Final = 300
_FEWEST_NODES: Final = 2


class Scene(Struct, frozen=True, kw_only=True):
    """One run's objects."""

    name: str
    """Of the run: its own namespace, template, runtime, and how its nodes and its other namespaces
    begin."""
    count: int
    """Pipelines."""

    @property
    def gateway(self) -> str:
        """Name of the gateway's pod."""
        return "gateway"

    def nodes(self) -> tuple[SimulatedNode, ...]:
        """Room for every pod, and for pods of this run only."""
        pods = self.count * len(STAGE_NAMES)
        return tuple(
            SimulatedNode(
                name=f"{self.name}-{number}",
                labels={_POOL: self.name},
                taints=({"key": _POOL, "value": self.name, "effect": "NoSchedule"},),
                resources={"cpu": "10000", "memory": "100Ti"},
            )
            for number in range(max(_FEWEST_NODES, -(-pods // _PODS_PER_NODE)))
        )

    @property
    def spaces(self) -> tuple[str, ...]:
        """The namespaces of the pipelines; gateway and lease are in the run's own."""
        count = -(-self.count // _PIPELINES_PER_NAMESPACE)
        return tuple(f"{self.name}-{number}" for number in range(count))

    def namespaces(self) -> tuple[Manifest, ...]:
        """Where everything is that has a namespace."""
        made = tuple(_object(NAMESPACES, name) for name in (self.name, *self.spaces))
        for each in made:
            each["metadata"]["labels"] = {_POOL: self.name}
        return made

    @property
    def chosen(self) -> str:
        """Selects the run's namespaces by their label."""
        return f"{_POOL}={self.name}"

    def template(self) -> Manifest:
        """A chain of three stages that compute nothing."""
        thinker, talker, code2wav = STAGE_NAMES
        stages = [
            {
                "name": thinker,
                "execution": "Autoregressive",
                "consumes": [{"name": "conversation", "kind": "conversation"}],
                "produces": [
                    {"name": "text", "kind": "text"},
                    {"name": "hidden", "kind": "hidden_states"},
                ],
                "defaults": _defaults(
                    text={"text": " word", "when": "step"},
                    hidden={"element_type": "float32", "shape": [16, 64], "when": "end"},
                ),
            },
            {
                "name": talker,
                "execution": "Autoregressive",
                "produces": [{"name": "codes", "kind": "codec_frames"}],
                "defaults": _defaults(
                    codes={"element_type": "int64", "shape": [16, 16], "when": "end"}
                ),
            },
            {
                "name": code2wav,
                "execution": "Generation",
                "produces": [{"name": "speech", "kind": "waveform"}],
                "defaults": _defaults(
                    speech={
                        "element_type": "int16",
                        "shape": [7680],
                        "rate_hz": 24000,
                        "when": "end",
                    }
                ),
            },
        ]
        edges = [
            {"from": thinker, "to": talker, "output": "hidden", "mode": "Full"},
            {"from": talker, "to": code2wav, "output": "codes", "mode": "Full"},
        ]
        outputs = [
            {"stage": thinker, "output": "text", "modality": "text"},
            {"stage": code2wav, "output": "speech", "modality": "audio"},
        ]
        spec = {"stages": stages, "edges": edges, "outputs": outputs}
        return _object(PIPELINE_TEMPLATES, self.name, spec=spec)

    def runtime(self) -> Manifest:
        """It places pods on this run's nodes."""
        spec = {
            "engine": "simulated",
            "resources": {"cpu": "10m", "memory": "64Mi"},
            "nodeSelector": {_POOL: self.name},
            "tolerations": [{"key": _POOL, "operator": "Exists"}],
        }
        return _object(STAGE_RUNTIMES, self.name, spec=spec)

    def gateway_pod(self) -> Manifest:
        """A pod that counts as a gateway; what it says is said by `SimulatedGateway`."""
        spec = {
            "nodeSelector": {_POOL: self.name},
            "tolerations": [{"key": _POOL, "operator": "Exists"}],
            "automountServiceAccountToken": False,
            "containers": [{"name": "gateway", "image": "simulated"}],
        }
        pod = _object(PODS, self.gateway, spec=spec, namespace=self.name)
        pod["metadata"]["labels"] = {"app.kubernetes.io/name": "omnistage-gateway"}
        return pod

    def pipelines(self) -> tuple[Manifest, ...]:
        """What the operator has to bring up."""
        stages = [
            {"name": stage, "runtime": {"name": self.name}, "limits": {"slabBytes": "16Mi"}}
            for stage in STAGE_NAMES
        ]
        spec = {"template": {"name": self.name}, "stages": stages}
        spaces = self.spaces
        return tuple(
            _object(
                INFERENCE_PIPELINES,
                f"p{number}",
                spec=spec,
                namespace=spaces[number % len(spaces)],
            )
            for number in range(self.count)
        )


def new_scene(count: int) -> Scene:
    """A run of that many pipelines, with a name that no other run has."""
    return Scene(name=f"bench-operator-{secrets.token_hex(4)}", count=count)


def _defaults(**outputs: Manifest) -> Manifest:
    return {
        "engine": "simulated",
        "engineArgs": {"steps": 1, "step_seconds": 0, "outputs": outputs},
    }


def _object(
    kind: ResourceKind, name: str, *, spec: Manifest | None = None, namespace: str = ""
) -> Manifest:
    where = {"namespace": namespace} if namespace else {}
    made: Manifest = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, **where},
    }
    if spec is not None:
        made["spec"] = spec
    return made
