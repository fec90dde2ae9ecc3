"""The commands of `omnistage`, one module each."""
