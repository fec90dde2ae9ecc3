"""What an autoscaler reads: a custom metrics API over the pods' real metrics, for the laboratory.

In the field this is Prometheus with an adapter. Here a server of the test process answers in their
place, behind an `APIService` as theirs is: it reads `/metrics` of the pods that are asked about and
divides the growth of a histogram's sum by that of its count. Two of their habits matter to what an
autoscaler does, and are kept: a pod that was seen only once has no value, and one where nothing was
measured in the window has 0, since the adapter makes that of the NaN that Prometheus answers.
"""

import base64
import datetime as dt
import re
import ssl
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from cluster.laboratory.access import Cluster
from omnistage_common.errors import SetupError

__all__ = ["serving_metrics"]

_NAME: Final = "test-metrics"
_NAMESPACE: Final = "default"
_GROUP: Final = "custom.metrics.k8s.io"
_VERSION: Final = "v1beta2"
_ROOT: Final = f"/apis/{_GROUP}/{_VERSION}"
_ASKED: Final = re.compile(rf"{_ROOT}/namespaces/([^/]+)/pods/\*/([^/]+)")
_METRICS_PORT: Final = 9001
_WINDOW_SECONDS: Final = 4.0
_PATIENCE_SECONDS: Final = 10.0


class _Sample(Struct, frozen=True, kw_only=True):
    """A histogram as it was at one moment."""

    at: float
    """Seconds of a clock that only goes forward."""
    total: float
    """Of all that was measured."""
    count: float
    """Of measurements."""


class _Means:
    """_Means of histograms over the last few seconds; for several threads."""

    def __init__(self, window: float = _WINDOW_SECONDS) -> None:
        self._window = window
        self._samples: defaultdict[str, deque[_Sample]] = defaultdict(deque)
        self._lock = threading.Lock()

    def observe(self, source: str, sample: _Sample) -> float | None:
        """Takes a sample; the mean since the oldest of the window, None where there is none older.

        Without a measurement in the window it is 0.
        """
        with self._lock:
            samples = self._samples[source]
            samples.append(sample)
            while sample.at - samples[0].at > self._window and len(samples) > 2:
                samples.popleft()
            oldest = samples[0]
            if oldest is sample:
                return None
            count = sample.count - oldest.count
            return (sample.total - oldest.total) / count if count else 0.0


@contextmanager
def serving_metrics(cluster: Cluster) -> Iterator[None]:
    """Serves the custom metrics API of a laboratory until the end of the block."""
    instance = cluster.instance
    assert instance is not None, "only the laboratory reaches a server of the host"
    host = str(instance.ranges.host)
    with tempfile.TemporaryDirectory() as folder, httpx.Client(timeout=5) as client:
        authority = _write_certificate(Path(folder))
        with _Server(host, Path(folder), cluster, client) as server:
            thread = threading.Thread(target=server.serve_forever, name="metrics adapter")
            thread.start()
            try:
                with _registered(cluster, host, server.server_port, authority):
                    yield
            finally:
                server.shutdown()
                thread.join()


@contextmanager
def _registered(cluster: Cluster, host: str, port: int, authority: bytes) -> Iterator[None]:
    """The server as a part of the cluster's own API."""
    place = {"name": _NAME, "namespace": _NAMESPACE}
    objects: tuple[dict[str, Any], ...] = (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": place,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**place, "labels": {"kubernetes.io/service-name": _NAME}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{_VERSION}.{_GROUP}"},
            "spec": {
                "group": _GROUP,
                "version": _VERSION,
                "service": {**place, "port": 443},
                "caBundle": base64.b64encode(authority).decode(),
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    )
    try:
        cluster.apply(*objects, namespace=_NAMESPACE)
        cluster.wait("condition=Available", f"apiservice/{_VERSION}.{_GROUP}")
        yield
    finally:
        names = [f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects]
        # The API first: one that does not answer keeps namespaces from going.
        for name in reversed(names):
            cluster.call("delete", name, "--ignore-not-found", f"--namespace={_NAMESPACE}")


def _write_certificate(folder: Path) -> bytes:
    """Writes a key, and a certificate of the Service's name that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"{_NAME}.{_NAMESPACE}.svc"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "tls.crt").write_bytes(public)
    (folder / "tls.key").write_bytes(private)
    return public


class _Server(ThreadingHTTPServer):
    """Listens on an address that the API server reaches."""

    def __init__(self, host: str, folder: Path, cluster: Cluster, client: httpx.Client) -> None:
        super().__init__((host, 0), _Handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        # Whoever connects and says nothing must not keep others waiting.
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self._cluster = cluster
        self._client = client
        self._means = _Means()

    def values(self, metric: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        """What there is to say about the pods that are asked about.

        Raises:
            SetupError: The cluster does not tell which they are.
        """
        pods = self._cluster.get("pods", f"--namespace={namespace}", f"--selector={selector}")
        found = ((pod, self._mean(pod, metric)) for pod in pods["items"])
        return [_value(pod, metric, mean) for pod, mean in found if mean is not None]

    def _mean(self, pod: dict[str, Any], metric: str) -> float | None:
        address = pod["status"].get("podIP")
        if address is None:
            return None
        try:
            answer = self._client.get(f"http://{address}:{_METRICS_PORT}/metrics")
        except httpx.HTTPError:
            return None
        values = {
            sample.name: sample.value
            for family in text_string_to_metric_families(answer.text)
            if family.name == metric
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }
        if not values:
            return None
        total, count = values[f"{metric}_sum"], values[f"{metric}_count"]
        sample = _Sample(at=time.monotonic(), total=total, count=count)
        return self._means.observe(pod["metadata"]["uid"], sample)


class _Handler(BaseHTTPRequestHandler):
    """Answers what an API server and an autoscaler ask; each connection has one request."""

    server: _Server
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        """Says which metrics there are, or their values."""
        url = urlsplit(self.path)
        if url.path == _ROOT:
            self._answer(HTTPStatus.OK, _resources())
            return
        asked = _ASKED.fullmatch(unquote(url.path))
        if asked is None:
            self._answer(HTTPStatus.NOT_FOUND, _failure("there is no such thing here"))
            return
        namespace, metric = asked.groups()
        selector = "".join(parse_qs(url.query).get("labelSelector", []))
        try:
            values = self.server.values(metric, namespace, selector)
        except SetupError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _failure(error.message))
            return
        self._answer(HTTPStatus.OK, _typed("MetricValueList", metadata={}, items=values))

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the base's name)
        """Says nothing: whoever asks tells what came of it."""

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = msgspec.json.encode(document)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _typed(kind: str, **content: Any) -> dict[str, Any]:
    return {"kind": kind, "apiVersion": f"{_GROUP}/{_VERSION}", **content}


def _resources() -> dict[str, Any]:
    """What discovery tells: metrics are made up as they are asked for, so it names none."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{_GROUP}/{_VERSION}",
        "resources": [],
    }


def _failure(message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}


def _value(pod: dict[str, Any], metric: str, mean: float) -> dict[str, Any]:
    metadata = pod["metadata"]
    return {
        "describedObject": {
            "apiVersion": "/v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
        },
        "metric": {"name": metric},
        "timestamp": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "windowSeconds": int(_WINDOW_SECONDS),
        "value": f"{round(mean * 1000)}m",
    }
