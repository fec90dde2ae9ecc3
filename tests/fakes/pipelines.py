"""Pipelines of simulated stages for tests, as YAML."""

__all__ = ["listening_pipeline"]

_LISTENING = """\
apiVersion: omnistage.io/v1alpha1
kind: InferencePipeline
metadata: {{name: listening}}
spec:
  topology:
    stages:
      - name: thinker
        execution: Autoregressive
        consumes:
          - {{name: conversation, kind: conversation}}
          - {{name: audio, kind: waveform, optional: true}}
        produces:
          - {{name: text, kind: text}}
          - {{name: hidden, kind: hidden_states}}
        defaults:
          engine: simulated
          engineArgs:
            step_seconds: {step_seconds}
            outputs:
              text: {{text: " word", when: step}}
              hidden: {{element_type: float32, shape: [{rows}, 64]}}
          replicas: {replicas}
          limits: {{maxRunning: {max_running}, maxQueued: {max_queued}}}
      - name: speaker
        execution: Generation
        produces:
          - {{name: speech, kind: waveform}}
        defaults:
          engine: simulated
          engineArgs:
            step_seconds: {speaker_step_seconds}
            fail_after_steps: 24
            outputs:
              speech: {{element_type: int16, shape: [{samples}], rate_hz: 24000}}
          limits: {{maxRunning: {max_running}, maxQueued: {max_queued}}}
    edges:
      - {{from: thinker, to: speaker, output: hidden, mode: Full}}
    outputs:
      - {{stage: thinker, output: text, modality: text}}
      - {{stage: speaker, output: speech, modality: audio}}
  timeouts: {{request: 30s, drain: 5s}}
"""


def listening_pipeline(
    *,
    samples: int = 7680,
    rows: int = 16,
    step_seconds: float = 0.0,
    speaker_step_seconds: float = 0.0,
    max_running: int = 64,
    max_queued: int = 64,
    replicas: int = 1,
) -> str:
    """A thinker that takes text and audio, and a speaker whose engine fails at its 24th step.

    Args:
        samples: Of the speech; more than 32768 travel in shared memory.
        rows: Of the hidden states, 256 bytes each.
        step_seconds: Cost of a step of the thinker.
        speaker_step_seconds: Cost of a step of the speaker.
        max_running: Requests in each engine.
        max_queued: Requests that wait for each engine.
        replicas: Of the thinker.
    """
    return _LISTENING.format(**locals())
