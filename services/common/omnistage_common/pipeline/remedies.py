"""Why a stage is not ready, and what to do about it: one sentence or more for every reason.

The reason says what is wrong, its message says where, in the scheduler's, kubelet's or engine's own
words; this says what a person does next. A test holds a row for every reason.
"""

from typing import Final

from omnistage_common.pipeline.resources.status import StageReason

__all__ = ["remedies_of"]

_REMEDIES: Final[dict[StageReason, tuple[str, ...]]] = {
    StageReason.READY: (),
    StageReason.PROGRESSING: (
        "Wait; when nothing changes for minutes, look at `kubectl describe` of the newest pod.",
    ),
    StageReason.INSUFFICIENT_CAPACITY: (
        (
            "Add a node that has what the StageRuntime asks for, or free one: the message says what"
            " each node lacks."
        ),
        "Ask for less in `resources`, `nodeSelector` and `tolerations` of the StageRuntime.",
        (
            "When a rollout waits for devices that the old revision holds, set"
            " `rollout.strategy: InPlace` in the pipeline."
        ),
    ),
    StageReason.IMAGE_PULL: (
        (
            "Compare the image's name and tag with the registry: `image` of the StageRuntime, or the"
            " operator's setting for this engine."
        ),
        (
            "For a private registry, name a pull secret that exists in the stage's namespace in the"
            " chart's values."
        ),
    ),
    StageReason.MODEL_LOADING: (
        "Wait: a large model takes minutes, and the first time it is also downloaded.",
        "`kubectl logs` of the pod shows how far it is.",
    ),
    StageReason.CRASH_LOOP: (
        "Read the whole log of the life that ended: `kubectl logs --previous` of the pod.",
        "When it began with a change, take that back: the earlier revision serves on until then.",
    ),
    StageReason.OOM_KILLED: (
        "Raise `resources.memory` of the StageRuntime, or lower `limits.maxRunning` of the stage.",
    ),
    StageReason.ENGINE_ARGS_REJECTED: (
        (
            "Mend the field that the message names, under `engineArgs` of the stage or of its"
            " StageRuntime; `omnistage render` shows where each value comes from."
        ),
    ),
    StageReason.WEIGHTS_INVALID: (
        "Check the stage's `model`: its name, its revision, and that it is a model for this engine.",
        "For a gated model, give the stage a token: `env` with a `secretKey`.",
    ),
    StageReason.MISSING_DEPENDENCY: (
        (
            "Use an image that was built with the extra that the message names: `image` of the"
            " StageRuntime, or the operator's setting for this engine."
        ),
    ),
    StageReason.CONFIG_ERROR: (
        (
            "Create the Secret, or the key of it, that the message names, in the stage's namespace;"
            " the pod then goes on by itself."
        ),
        "Or correct `secretKey` under `env`.",
    ),
    StageReason.VOLUME_NOT_MOUNTED: (
        "Look at what the message names; the kubelet tries again by itself.",
    ),
    StageReason.QUOTA_EXCEEDED: (
        (
            "Raise the namespace's ResourceQuota, lower `replicas`, or ask for less in the"
            " StageRuntime's `resources`."
        ),
    ),
    StageReason.PODS_REFUSED: (
        (
            "The message names the admission rule; stages meet the Pod Security level `restricted`,"
            " so look at other policies and webhooks of the cluster."
        ),
    ),
    StageReason.EVICTED: (
        (
            "The node ran short of what the message names: ask for what the stage really uses in"
            " `resources` of the StageRuntime, so that it is placed where there is room."
        ),
    ),
    StageReason.GRAPH_INVALID: (
        (
            "Mend the fields that the message names; `omnistage validate FILE` says the same before"
            " anything is applied."
        ),
    ),
    StageReason.TEMPLATE_MISSING: (
        (
            "Apply the PipelineTemplate, or correct `template.name`; `kubectl get pipelinetemplates`"
            " lists those that there are."
        ),
    ),
    StageReason.LEADER_WORKER_SET_MISSING: (
        (
            "Install LeaderWorkerSet in the cluster and start the operator anew: `kubectl rollout"
            " restart` of its Deployment."
        ),
        "Or let a replica have one node: remove `parallelism.nodes`.",
    ),
    StageReason.RUNTIME_MISSING: (
        (
            "Apply the StageRuntime, or correct `runtime.name`; `kubectl get stageruntimes` lists those"
            " that there are."
        ),
    ),
    StageReason.STAGE_MISSING: (
        "Apply the Stage in the pipeline's namespace, or correct `stageRef.name`.",
    ),
    StageReason.NOT_ROUTABLE: (
        (
            "Wait a few seconds; then look at the gateways' logs, and at NetworkPolicies between their"
            " namespace and the stage's."
        ),
    ),
    StageReason.SCALED_TO_ZERO: ("Set `replicas`, or `kubectl scale` the Stage, to serve again.",),
    StageReason.DRAINING: ("Wait: requests that run are finished, at most for `drain` seconds.",),
}


def remedies_of(reason: str | None) -> tuple[str, ...]:
    """What to do about a reason, the likeliest first; nothing for one that this release lacks."""
    try:
        return _REMEDIES[StageReason(reason)]
    except ValueError:
        return ()
