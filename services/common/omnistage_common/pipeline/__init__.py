"""The pipeline model: from a YAML file to the plan that gateway and stages execute. No I/O but reading.

In the order in which a file passes through them:

    reading     documents (YAML with places), fields, explaining, loading; problems and quantities
    resources   what a user may write: pydantic models, the source of the CRDs
    choosing    overrides (command line), graph, selecting (which resources make a pipeline)
    checking    topology_checks, settings_checks, unsupported, validation
    resolving   merging (layers of one stage), origins, revisions, resolver
    result      plan

Each imports only what stands above it, and `problems`, `quantities` and `plan`. Import what you need
from its module: a stage reads `plan` and must not pay for pydantic or YAML.
"""
