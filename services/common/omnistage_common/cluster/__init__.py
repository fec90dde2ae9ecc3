"""The way to a Kubernetes API server, for every process that has one: operator, gateway, command line.

    connecting  the official client: address, trust, credentials, bytes (the only importer of it)
    answers     what a refusal means, as an error of our tree (errors)
    api         verbs over raw JSON, paced, retried and fenced (rates, fencing)
    informing   list and watch of one kind into a store;  caches: all kinds of a process
    values      manifests, kinds;  figures: metrics

It knows no pipeline and decides nothing. Import what you need from its module.
"""
