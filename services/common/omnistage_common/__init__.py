"""What every component shares: ids, errors, deadlines, payloads, links, tensors and pipelines.

gRPC is told here, before anything can import it, to use its older I/O engine: a message on a link then
costs half the CPU time at each end (`docs/explanation/performance.md` has the figures). Whoever sets
`GRPC_EXPERIMENTS` decides otherwise.
"""

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
