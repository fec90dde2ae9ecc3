"""The configuration files of the node's servers, as plain values written out.

Each value is here for one of three reasons: the addresses of this cluster, the limits of a small
machine or of a container without every capability, and the speed of tests. Everything else stays at
its default, because tests should meet Kubernetes as others run it.
"""

import base64
import json
from typing import Any, Final

from cluster.laboratory.certificates import ADMINISTRATOR, AUTHORITY
from cluster.laboratory.cgroups import group_name
from cluster.laboratory.instance import DOMAIN, Instance

__all__ = ["CONTAINERD_SOCKET", "PAUSE_IMAGE", "write_settings"]

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
PAUSE_IMAGE: Final = "omnistage.local/pause:1"

_USERS: Final = (
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
)


def write_settings(instance: Instance) -> None:
    """Writes a file for every server that has one, and a kubeconfig for every client."""
    folder = instance.settings
    (folder / "cni").mkdir(parents=True)
    documents: dict[str, dict[str, Any]] = {
        "kubelet.json": _kubelet(instance),
        "kube-proxy.json": _kube_proxy(instance),
        "cni/10-laboratory.conflist": _cni(instance),
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2), encoding="utf-8")
    (folder / "containerd.toml").write_text(_containerd(instance), encoding="utf-8")
    (folder / "Corefile").write_text(_corefile(instance), encoding="utf-8")
    # Pods get the cluster's search domains from the kubelet and nothing of the host.
    (folder / "resolv.conf").write_text("", encoding="utf-8")
    for user in _USERS:
        _write_kubeconfig(instance, user, f"settings/{user}.kubeconfig")
    _write_kubeconfig(instance, ADMINISTRATOR, "kubeconfig")


def _write_kubeconfig(instance: Instance, user: str, name: str) -> None:
    def inline(file: str) -> str:
        return base64.b64encode((instance.certificates / file).read_bytes()).decode()

    context = "omnistage-laboratory"
    cluster = {
        "server": instance.url,
        "certificate-authority-data": inline(f"{AUTHORITY}.crt"),
    }
    credentials = {
        "client-certificate-data": inline(f"{user}.crt"),
        "client-key-data": inline(f"{user}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
        "current-context": context,
    }
    path = instance.state / name
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")


def _kubelet(instance: Instance) -> dict[str, Any]:
    certificates = instance.certificates
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certificates / f"{AUTHORITY}.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificates / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(certificates / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group_name(instance.identity)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # A container without CAP_SYS_RESOURCE may not lower its own score.
        "oomScoreAdj": 0,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        # Images come from no registry: one that is thrown away would be gone for good.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 110,
        "clusterDNS": [str(instance.ranges.dns)],
        "clusterDomain": DOMAIN,
        "resolvConf": str(instance.settings / "resolv.conf"),
        "volumePluginDir": str(instance.state / "volume-plugins"),
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
    }


def _kube_proxy(instance: Instance) -> dict[str, Any]:
    # The table of connections is the host's: its limits may not be set from here.
    conntrack = {
        "maxPerCore": 0,
        "min": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    }
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": str(instance.ranges.pods),
        "clientConnection": {"kubeconfig": str(instance.settings / "kube-proxy.kubeconfig")},
        "conntrack": conntrack,
        "iptables": {"minSyncPeriod": "100ms"},
        "oomScoreAdj": 0,
    }


def _cni(instance: Instance) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        # The host has a route back to every pod, so nothing needs to hide behind the node.
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(instance.ranges.pods)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/cni",
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    return {"cniVersion": "1.0.0", "name": "laboratory", "plugins": [bridge, portmap]}


def _containerd(instance: Instance) -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
  address = "{CONTAINERD_SOCKET}"

[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true

[{cri}.cni]
  bin_dir = "{instance.programs}"
  conf_dir = "{instance.settings}/cni"

[{cri}.containerd]
  snapshotter = "overlayfs"

[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


def _corefile(instance: Instance) -> str:
    return f""".:53 {{
    bind {instance.ranges.node}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {instance.settings}/coredns.kubeconfig
        pods insecure
        ttl 5
    }}
    cache 5
}}
"""
