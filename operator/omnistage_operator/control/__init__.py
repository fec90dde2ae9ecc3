"""The machinery of a controller, without knowing how a cluster is reached.

    values      manifests, kinds, quantities
    rules       work_queue, store, holding, ownership, fencing, leadership, rates: no I/O
    running     queueing, controlling: asyncio and nothing else
    figures     metrics

Nothing here imports the Kubernetes client or opens a connection: that is `omnistage_operator.cluster`.
Import what you need from its module.
"""
