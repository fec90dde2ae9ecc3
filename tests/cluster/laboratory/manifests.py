"""What every cluster needs in its API: the DNS service, and the rights of the server behind it.

CoreDNS is a process of the node and no pod, so that names resolve before the first image is there;
the service has no selector and an endpoint of its own.
"""

from typing import Any

from cluster.laboratory.instance import Instance

__all__ = ["dns_objects"]


def dns_objects(instance: Instance) -> dict[str, Any]:
    """A list of objects to apply."""
    namespace = "kube-system"
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kube-dns",
            "namespace": namespace,
            "labels": {"k8s-app": "kube-dns"},
        },
        "spec": {"clusterIP": str(instance.ranges.dns), "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-node",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [str(instance.ranges.node)], "conditions": {"ready": True}},
        ],
        "ports": ports,
    }
    reads = ["list", "watch"]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["endpoints", "services", "pods", "namespaces"],
                "verbs": reads,
            },
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": reads},
        ],
    }
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:coredns",
        },
        "subjects": [user],
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints, role, binding]}
