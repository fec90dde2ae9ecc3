"""The stage service: one process, one gRPC port, one engine."""
