"""Keys and certificates of a cluster: one authority, and a certificate for each who must be known.

They are made anew for every cluster and die with its state folder, so they need not be strong for
long; elliptic curve keys are used because they take a millisecond each.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.laboratory.instance import DOMAIN, NODE, Instance

__all__ = ["ADMINISTRATOR", "AUTHORITY", "CLIENTS", "WEBHOOKS", "write_certificates"]

AUTHORITY: Final = "authority"
ADMINISTRATOR: Final = "administrator"
WEBHOOKS: Final = "webhooks"
"""For a server of the node that the API server asks about objects."""

CLIENTS: Final[dict[str, tuple[str, str]]] = {
    ADMINISTRATOR: ("omnistage-laboratory", "system:masters"),
    "kube-apiserver-to-kubelet": ("kube-apiserver", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", ""),
    "front-proxy": ("front-proxy-client", ""),
}
"""File name -> user and group that the API server sees."""

_LIFE: Final = dt.timedelta(days=365)


class _Authority:
    """Signs what the cluster needs and writes it to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("omnistage-laboratory-authority", "")
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        _write_pair(folder / AUTHORITY, self._key, certificate)

    def issue(self, file: str, user: str, group: str = "", names: Sequence[str] = ()) -> None:
        """Writes `file`.crt and `file`.key, good for a client and for a server of these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(_name(user, group), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if names:
            known = x509.SubjectAlternativeName([_general_name(name) for name in names])
            builder = builder.add_extension(known, critical=False)
        _write_pair(self._folder / file, key, builder.sign(self._key, hashes.SHA256()))


def write_certificates(instance: Instance) -> None:
    """Writes every key and certificate of a cluster, and the key pair of its service accounts."""
    folder = instance.certificates
    folder.mkdir(mode=0o700)
    authority = _Authority(folder)
    for file, (user, group) in CLIENTS.items():
        authority.issue(file, user, group)
    kubernetes = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    addresses = ("127.0.0.1", str(instance.ranges.node), str(instance.ranges.api))
    names = (*kubernetes, f"kubernetes.default.svc.{DOMAIN}", "localhost", *addresses)
    authority.issue("kube-apiserver", "kube-apiserver", names=names)
    authority.issue("kubelet-server", NODE, names=(NODE, str(instance.ranges.node)))
    authority.issue(WEBHOOKS, WEBHOOKS, names=(str(instance.ranges.node),))
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "service-accounts.key").write_bytes(_private(key))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "service-accounts.pub").write_bytes(public)


def _name(common: str, organisation: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(parts)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    # The service account issuer reads EC keys in their traditional form, as everybody else does.
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def _write_pair(path: Path, key: ec.EllipticCurvePrivateKey, signed: x509.Certificate) -> None:
    path.with_suffix(".crt").write_bytes(signed.public_bytes(Encoding.PEM))
    path.with_suffix(".key").write_bytes(_private(key))
