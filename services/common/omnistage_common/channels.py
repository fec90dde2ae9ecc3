"""gRPC options that both ends of a link must agree on.

Keepalive finds a peer that is frozen or cut off: a ping every two seconds, answered within one
(gRPC waits a minute for the answer unless the ping's own time-out says otherwise).
Message sizes are bounded by what a batch of frames can be, far above the usual and far below memory.
"""

from typing import Final

__all__ = ["CHANNEL_OPTIONS", "SERVER_OPTIONS"]

_MESSAGE_BYTES: Final = 64 * 1024 * 1024

_COMMON: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 1000),
    ("grpc.http2.ping_timeout_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: Final = (
    *_COMMON,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)
"""For servers."""

CHANNEL_OPTIONS: Final = (
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)
"""For channels."""
