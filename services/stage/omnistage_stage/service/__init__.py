"""The gRPC face of a replica: links, requests, admission and drain around one engine."""
