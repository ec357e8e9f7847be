"""Certificates for a broker and its clients, made for one run of the tests."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Identity:
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def of_pem(cls, pem: str) -> Identity:
        """Return the identity in ``pem``."""
        key = load_pem_private_key(pem.encode("ascii"), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(key, x509.load_pem_x509_certificate(pem[pem.index("-----BEGIN CERTIFICATE") :].encode("ascii")))

    @property
    def pem(self) -> str:
        """Key and certificate in one text, as Java expects them."""
        return self.key_pem + self.certificate_pem

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode("ascii")

    def write(self, path: Path) -> Path:
        """Write key and certificate to one file."""
        path.write_text(self.pem)
        return path


def make_authority(name: str = "tests") -> Identity:
    """Create a certificate authority."""
    return _issue(name, None, (x509.BasicConstraints(ca=True, path_length=None),))


def issue(authority: Identity, name: str) -> Identity:
    """Issue a certificate for the loopback interface."""
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    return _issue(name, authority, (x509.BasicConstraints(ca=False, path_length=None), loopback))


def _issue(name: str, authority: Identity | None, extensions: tuple[x509.ExtensionType, ...]) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = subject if authority is None else authority.certificate.subject
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=2))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return Identity(key, builder.sign(key if authority is None else authority.key, hashes.SHA256()))
