"""The command line and the local runtime: the same pipeline files, as local processes."""

import os

# gRPC's core reads this once, when it is first imported. Unset, it writes a line to the terminal, in
# the middle of the display, for every connection that a stopping process closes.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
