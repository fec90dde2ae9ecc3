"""The link: one long-lived stream between a gateway worker and a replica, for all their requests.

`frames` are the steps in a request's life as values, `protocol` is what each end may do when (no
I/O), `wire` turns frames into protobuf and back. The gRPC streams around them belong to gateway and
stage. Why one stream and not an RPC per request: an RPC costs about 0.4 ms of CPU at each end in
Python; a frame in a batch costs microseconds, and the break of the stream is how a dead peer is
noticed.
"""
