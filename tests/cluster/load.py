"""Constant load on a gateway's address, from the host; every answer is looked at.

Each request has a connection of its own: a kept one may be closed by a gateway that leaves just when
it is used, which is a gap of HTTP and not of what is tested.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

__all__ = ["Load", "asked", "spoken", "under_load"]

_TIMEOUT: Final = 60.0
_MOST: Final = 20_000
"""Requests of one load, at most."""


def spoken(model: str, *, stream: bool) -> dict[str, Any]:
    """The body of a request whose answer is text and speech."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": "pcm16" if stream else "wav"},
        "stream": stream,
    }


async def asked(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
    """The text of a whole answer.

    Raises:
        AssertionError: It is not whole: an error, no speech, or no end.
        httpx.HTTPError: There is no answer.
    """
    path = f"{url}/v1/chat/completions"
    if not body["stream"]:
        answer = await client.post(path, json=body)
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.text}")
        message = answer.json()["choices"][0]["message"]
        _require(message["audio"]["data"], "an answer without speech")
        return str(message["content"])
    text, speech, ended = "", 0, False
    async with client.stream("POST", path, json=body) as answer:
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                _require("error" not in event, line)
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    speech += len((choice["delta"].get("audio") or {}).get("data") or "")
    _require(ended, "a stream without its end")
    _require(speech, "a stream without speech")
    return text


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


class Load:
    """Requests one after another, from several clients at once.

    Args:
        url: Of the gateways.
        model: What to ask for.
        clients: How many ask at once.
    """

    def __init__(self, url: str, model: str, clients: int) -> None:
        self.answers: list[str] = []
        """Texts of whole answers, in the order in which they ended."""
        self.failures: list[str] = []
        self._url = url
        self._model = model
        self._clients = clients
        self._stop = threading.Event()
        self._progress = threading.Condition()

    def wait_answers(self, more: int, *, seconds: float = 60.0) -> None:
        """Waits until that many more requests have ended."""
        with self._progress:
            wanted = len(self.answers) + more
            reached = self._progress.wait_for(
                lambda: bool(self.failures) or len(self.answers) >= wanted, timeout=seconds
            )
        _require(reached, f"fewer than {more} answers in {seconds} s")

    def run(self) -> None:
        """Asks until told to stop; in a thread of its own."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Lets every request end, and begins none."""
        self._stop.set()

    async def _run(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT, limits=limits) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(self._clients):
                tasks.create_task(self._ask(client, stream=bool(number % 2)))

    async def _ask(self, client: httpx.AsyncClient, *, stream: bool) -> None:
        body = spoken(self._model, stream=stream)
        while not self._stop.is_set() and len(self.answers) < _MOST:
            try:
                text = await asked(client, self._url, body)
            except (httpx.HTTPError, AssertionError) as failure:
                self._note(self.failures, f"{type(failure).__name__}: {failure}")
            else:
                self._note(self.answers, text)

    def _note(self, notes: list[str], note: str) -> None:
        with self._progress:
            notes.append(note)
            self._progress.notify_all()


@contextmanager
def under_load(url: str, model: str, *, clients: int = 4) -> Iterator[Load]:
    """Constant load while the block runs; it has ended when the block has."""
    load = Load(url, model, clients)
    thread = threading.Thread(target=load.run, name="load")
    thread.start()
    try:
        load.wait_answers(clients)
        yield load
    finally:
        load.stop()
        thread.join()
