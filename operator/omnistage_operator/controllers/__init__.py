"""The two controllers: what each watches, whom a change concerns, and the way from plan to cluster."""
