"""What the operator does to a cluster.

    applying    intents and statuses by server-side apply, only where something differs
    electing    the Lease;  recording: events for people

The rules behind these are in `omnistage_operator.control`; the way to the API server is
`omnistage_common.cluster`. Import what you need from its module.
"""
