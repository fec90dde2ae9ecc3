"""An HTTP client that can misbehave: it keeps bodies back, hangs up, and reads only when told to."""

import json
import socket
import struct
import time
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["PATH", "RawClient", "question"]

PATH: Final = "/v1/chat/completions"
TIMEOUT: Final = 30.0


def question(model: str, /, *, speak: bool = False, **fields: Any) -> dict[str, Any]:
    """The body of a chat completion request."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    if speak:
        body |= {"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "pcm16"}}
    return body | fields


class RawClient:
    """One connection to a gateway.

    Args:
        port: Of the gateway, on this machine.
        receive_buffer: Bytes the kernel may hold for us; None for its own choice.
    """

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(TIMEOUT)
        self._socket.connect(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection as a client does that is done."""
        self._file.close()
        self._socket.close()

    def hang_up(self) -> float:
        """Ends the connection abruptly, with a reset; the time of that."""
        linger = struct.pack("ii", 1, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()
        return time.monotonic()

    def send_head(self, **headers: str) -> None:
        """Sends the head of a request; underscores in names stand for dashes."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"POST {PATH} HTTP/1.1", "Host: test", *lines, "", ""])
        self._socket.sendall(head.encode())

    def send(self, data: bytes) -> None:
        """Sends bytes of a body."""
        self._socket.sendall(data)

    def ask(self, body: dict[str, Any], **headers: str) -> None:
        """Sends a whole request."""
        data = json.dumps(body).encode()
        self.send_head(Content_Length=str(len(data)), **headers)
        self.send(data)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer."""
        status = int(self._file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def read_body(self, headers: dict[str, str]) -> bytes:
        """A whole body of a known length."""
        return self._file.read(int(headers["content-length"]))

    def read_chunk(self) -> bytes:
        """The next chunk of a streamed body; empty at its end."""
        size = int(self._file.readline() or b"0", 16)
        chunk = self._file.read(size)
        self._file.readline()
        return chunk

    def read_rest(self) -> bytes:
        """All chunks up to the end."""
        return b"".join(iter(self.read_chunk, b""))
