"""Pipelines: resources as people write them, the checks on them, and the plan that is executed.

Resources (`resources`, pydantic) are read from YAML (`loading`), checked (`validation`) and resolved
(`resolver`) to a `PipelinePlan` (`plan`, msgspec). Only those who read resources pay for pydantic
and YAML: this package imports nothing by itself, and `plan` needs neither.
"""
