"""Version 1 of the stage service; breaking it needs a version 2 beside it."""
