"""The machinery of a controller, without knowing how a cluster is reached.

    rules       work_queue, holding, ownership, leadership: no I/O
    running     queueing, controlling: asyncio and nothing else
    figures     metrics

Nothing here opens a connection: that is `omnistage_operator.cluster`. Import what you need from its
module.
"""
