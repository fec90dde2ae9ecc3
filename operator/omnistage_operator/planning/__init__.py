"""Pure planners: from what was observed to what should be, and what to say about it."""
