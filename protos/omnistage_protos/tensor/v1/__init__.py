"""Version 1 of the tensor service; breaking it needs a version 2 beside it."""
