"""Stage replicas as the gateway sees them: one link to each, and the choice among them."""
