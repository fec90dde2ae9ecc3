"""A request's life at the gateway: its stages in order, its deadline, its cancel, its answer."""
