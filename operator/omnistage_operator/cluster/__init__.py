"""Everything that talks to the API server.

    connecting  the official client: address, trust, credentials, bytes (the only importer of it)
    answers     what a refusal means, as an error of our tree
    api         verbs over raw JSON, paced, retried and fenced
    informing   list and watch of one kind into a store;  caches: all kinds of a process
    applying    intents and statuses by server-side apply, only where something differs
    electing    the Lease;  recording: events for people

The rules behind these are in `omnistage_operator.control` and know nothing of a cluster. Import what
you need from its module.
"""
