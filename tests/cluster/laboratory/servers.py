"""The servers of a node: with which arguments each runs, and how to tell that it serves.

Pure values; `node` starts them, in two groups. The servers of a group start together.
"""

from typing import Final

from msgspec import Struct

from cluster.laboratory.certificates import AUTHORITY
from cluster.laboratory.instance import DOMAIN, NODE, Instance
from cluster.laboratory.settings import CONTAINERD_SOCKET

__all__ = ["Server", "groups"]

_QUICK: Final = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""The defaults bound a client to 20 requests a second, which a test of thousands waits for."""


class Server(Struct, frozen=True, kw_only=True):
    """One program that runs as long as the node does."""

    name: str
    """Also that of its log file."""
    command: tuple[str, ...]
    url: str = ""
    """Answers with 200 once it serves; HTTPS is not verified."""
    socket: str = ""
    """Accepts connections once it serves; used where there is no URL."""


def groups(instance: Instance) -> tuple[tuple[Server, ...], tuple[Server, ...]]:
    """The servers that the others need, and those others."""
    return (
        (_etcd(instance), _containerd(instance), _api_server(instance)),
        (
            _controller_manager(instance),
            _scheduler(instance),
            _kubelet(instance),
            _kube_proxy(instance),
            _coredns(instance),
        ),
    )


def _etcd(instance: Instance) -> Server:
    return Server(
        name="etcd",
        command=(
            f"{instance.programs}/etcd",
            f"--data-dir={instance.state}/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            # What it holds is thrown away with the cluster.
            "--unsafe-no-fsync",
            "--quota-backend-bytes=4294967296",
        ),
        url="http://127.0.0.1:2379/health",
    )


def _containerd(instance: Instance) -> Server:
    return Server(
        name="containerd",
        command=("containerd", f"--config={instance.settings}/containerd.toml"),
        socket=CONTAINERD_SOCKET,
    )


def _api_server(instance: Instance) -> Server:
    ranges, certificates = instance.ranges, instance.certificates
    authority = f"{certificates}/{AUTHORITY}.crt"
    return Server(
        name="kube-apiserver",
        command=(
            f"{instance.programs}/kube-apiserver",
            f"--advertise-address={ranges.node}",
            "--allow-privileged",
            "--authorization-mode=Node,RBAC",
            f"--client-ca-file={authority}",
            "--enable-admission-plugins=NodeRestriction",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--kubelet-certificate-authority={authority}",
            f"--kubelet-client-certificate={certificates}/kube-apiserver-to-kubelet.crt",
            f"--kubelet-client-key={certificates}/kube-apiserver-to-kubelet.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={certificates}/front-proxy.crt",
            f"--proxy-client-key-file={certificates}/front-proxy.key",
            f"--requestheader-client-ca-file={authority}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            "--secure-port=6443",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-key-file={certificates}/service-accounts.pub",
            f"--service-account-signing-key-file={certificates}/service-accounts.key",
            f"--service-cluster-ip-range={ranges.services}",
            f"--tls-cert-file={certificates}/kube-apiserver.crt",
            f"--tls-private-key-file={certificates}/kube-apiserver.key",
        ),
        url=f"{instance.url}/readyz",
    )


def _controller_manager(instance: Instance) -> Server:
    certificates = instance.certificates
    config = f"{instance.settings}/kube-controller-manager.kubeconfig"
    return Server(
        name="kube-controller-manager",
        command=(
            f"{instance.programs}/kube-controller-manager",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--cluster-signing-cert-file={certificates}/{AUTHORITY}.crt",
            f"--cluster-signing-key-file={certificates}/{AUTHORITY}.key",
            f"--kubeconfig={config}",
            "--leader-elect=false",
            f"--root-ca-file={certificates}/{AUTHORITY}.crt",
            f"--service-account-private-key-file={certificates}/service-accounts.key",
            "--use-service-account-credentials",
            f"--flex-volume-plugin-dir={instance.state}/volume-plugins",
            # An autoscaler looks every 15 s and takes nothing away for 5 minutes: long for a test.
            "--horizontal-pod-autoscaler-sync-period=1s",
            "--horizontal-pod-autoscaler-downscale-stabilization=5s",
            *_QUICK,
        ),
        url="https://127.0.0.1:10257/healthz",
    )


def _scheduler(instance: Instance) -> Server:
    config = f"{instance.settings}/kube-scheduler.kubeconfig"
    return Server(
        name="kube-scheduler",
        command=(
            f"{instance.programs}/kube-scheduler",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--kubeconfig={config}",
            "--leader-elect=false",
            *_QUICK,
        ),
        url="https://127.0.0.1:10259/healthz",
    )


def _kubelet(instance: Instance) -> Server:
    return Server(
        name="kubelet",
        command=(
            f"{instance.programs}/kubelet",
            f"--config={instance.settings}/kubelet.json",
            f"--hostname-override={NODE}",
            f"--kubeconfig={instance.settings}/kubelet.kubeconfig",
            f"--node-ip={instance.ranges.node}",
        ),
        url="http://127.0.0.1:10248/healthz",
    )


def _kube_proxy(instance: Instance) -> Server:
    return Server(
        name="kube-proxy",
        command=(
            f"{instance.programs}/kube-proxy",
            f"--config={instance.settings}/kube-proxy.json",
            f"--hostname-override={NODE}",
        ),
        url="http://127.0.0.1:10256/livez",
    )


def _coredns(instance: Instance) -> Server:
    return Server(
        name="coredns",
        command=(f"{instance.programs}/coredns", f"-conf={instance.settings}/Corefile"),
        url="http://127.0.0.1:8181/ready",
    )
