"""A gateway process that knows no stage, as the local runtime and its clients see one.

It keeps the contract of `python -m omnistage_gateway` (arguments, /readyz, SIGTERM) and answers every
chat completion with the question's words, or with a silent recording where audio is asked for.
"""

import argparse
import base64
import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from omnistage_common.addresses import parse_address
from omnistage_common.processes import exit_with_parent

SOUND: Final = b"RIFF silence"
"""What stands for a WAV file."""


class Handler(BaseHTTPRequestHandler):
    """The three paths that are asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Always ready."""
        self._answer(200 if self.path == "/readyz" else 404, {})

    def do_POST(self) -> None:
        """A chat completion, or what the model name asks for instead."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["model"] == "unknown":
            error = {"message": "no such model", "type": "x", "param": None}
            self._answer(404, {"error": error | {"code": "model_not_found"}})
        elif request["model"] == "mute":
            self._answer(200, completion(request, audio=False))
        elif request["model"] == "foreign":
            self._answer(200, {"something": "else"})
        else:
            self._answer(200, completion(request, audio="audio" in request["modalities"]))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the inherited name
        """Logs nothing."""

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def completion(request: dict[str, Any], *, audio: bool) -> dict[str, Any]:
    """The body of an answer."""
    content = request["messages"][0]["content"]
    heard = [] if isinstance(content, str) else ["what was said"]
    message: dict[str, Any] = {"role": "assistant", "content": f"you asked: {content or heard}"}
    if heard:
        message["content"] = f"you asked: {heard[0]}"
    if audio:
        message["audio"] = {"id": "audio-1", "data": base64.b64encode(SOUND).decode()}
    stage = {"name": "thinker", "replica": "thinker-0", "queue_ms": 0.5, "run_ms": 12.5}
    report = {"request_id": "1", "transcripts": heard, "stages": [stage], "total_ms": 13.5}
    return {"choices": [{"index": 0, "message": message}], "omnistage": report}


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser()
    for option in ("--plan", "--endpoints", "--listen"):
        parser.add_argument(option, required=True)
    parser.add_argument("--exit-with-parent", action="store_true")
    options = parser.parse_args()
    if options.exit_with_parent:
        exit_with_parent()
    json.loads(Path(options.endpoints).read_bytes())
    address = parse_address(options.listen)
    server = ThreadingHTTPServer((address.host, address.port), Handler)
    closing = threading.Thread(target=server.shutdown)
    signal.signal(signal.SIGTERM, lambda *_: closing.start())
    server.serve_forever()
    server.server_close()


if __name__ == "__main__":
    main()
