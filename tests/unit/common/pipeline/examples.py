"""A small pipeline that is valid, and ways to bend it: what most tests here start from."""

from omnistage_common.pipeline.loading import load_text
from omnistage_common.pipeline.overrides import parse_override
from omnistage_common.pipeline.plan import PipelinePlan
from omnistage_common.pipeline.problems import Problem
from omnistage_common.pipeline.resolver import resolve
from omnistage_common.pipeline.validation import check

__all__ = ["VALID", "bent", "found", "lines_of", "plan_of"]

VALID = """\
apiVersion: omnistage.io/v1alpha1
kind: PipelineTemplate
metadata: {name: omni}
spec:
  stages:
    - name: thinker
      execution: Autoregressive
      consumes:
        - {name: conversation, kind: conversation}
      produces:
        - {name: text, kind: text}
        - {name: hidden, kind: hidden_states}
      defaults:
        engine: simulated
        model: package://small
        engineArgs: {steps: 4, outputs: {text: {text: hi}}}
        env:
          - {name: THREADS, value: "1"}
        limits: {maxRunning: 8}
    - name: talker
      execution: Generation
      produces:
        - {name: speech, kind: waveform}
      defaults:
        engine: simulated
  edges:
    - {from: thinker, to: talker, output: hidden, mode: Full}
  outputs:
    - {stage: thinker, output: text, modality: text}
    - {stage: talker, output: speech, modality: audio}
---
apiVersion: omnistage.io/v1alpha1
kind: StageRuntime
metadata: {name: small-node}
spec:
  engine: simulated
  engineArgs: {steps: 6, width: 2}
  env:
    - {name: THREADS, value: "2"}
---
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {name: chat}
spec:
  template: {name: omni}
  model: {source: "hf://org/big@main", servedNames: [chat]}
  stages:
    - name: thinker
      runtime: {name: small-node}
      engineArgs: {width: 3}
  timeouts: {request: 60s}
"""
"""Two stages, one runtime, one pipeline; its line numbers appear in expectations."""


def bent(*changes: tuple[str, str]) -> str:
    """`VALID` with pieces replaced, each of which stands in it exactly once."""
    text = VALID
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the example"
        text = text.replace(old, new)
    return text


def found(text: str, *overrides: str) -> tuple[Problem, ...]:
    """Every problem of YAML text, called `p.yaml`."""
    return check(load_text(text, file="p.yaml"), overrides=[parse_override(o) for o in overrides])


def lines_of(text: str, *overrides: str) -> list[str]:
    """The same, as a person reads them."""
    return [str(problem) for problem in found(text, *overrides)]


def plan_of(text: str = VALID, *overrides: str) -> PipelinePlan:
    """The plan of the only pipeline in YAML text."""
    return resolve(
        load_text(text, file="p.yaml"), overrides=[parse_override(each) for each in overrides]
    )
