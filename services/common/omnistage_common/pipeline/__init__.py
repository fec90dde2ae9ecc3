"""The pipeline model: from a YAML file to the plan that gateway and stages execute.

In the order in which a file passes through them:

    resources   what a user may write: pydantic models, the source of the CRDs
    reading     documents (YAML with places), fields, explaining, loading
    choosing    overrides (command line), graph, selecting (which resources make a pipeline)
    checking    topology_checks, settings_checks, unsupported, validation
    resolving   merging (the layers of one stage), origins, revisions, resolver
    result      plan

`problems` is what reading, choosing and checking find; `quantities` are durations and sizes;
`reference` writes the documentation of the resources. Only `loading` touches a file. Import what you
need from its module: this package imports nothing by itself, as a stage reads `plan` and must not pay
for pydantic or YAML.
"""
