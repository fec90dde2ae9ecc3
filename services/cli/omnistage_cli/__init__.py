"""The command line and the local runtime: the same pipeline files, as local processes."""
