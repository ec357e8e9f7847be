"""Key management services on the loopback interface that answer the requests that we make to Google's, Azure's and
Vault's.

A service holds keys in memory, and requires the expected token. It first gives the answers that a test has planned,
then real ones.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import crc32c
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.network.loopback_server import LoopbackServer, RunningServer

TOKEN: Final = "loopback-token"


@dataclass
class Answer:
    """Planned answer that replaces the real one. With ``drip_s``, it comes byte by byte, at this interval."""

    status: int
    body: bytes = b"{}"
    drip_s: float = 0.0


@dataclass
class KeyService:
    """Base of services that :func:`serving` runs."""

    planned: deque[Answer] = field(default_factory=deque[Answer])
    requests: list[str] = field(default_factory=list[str])
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def answer(self, method: str, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, Any]:
        raise NotImplementedError

    headers: dict[str, str] = field(default_factory=dict[str, str])


class SymmetricKeys:
    """Named symmetric keys. Each key decrypts only its own ciphertext."""

    def __init__(self) -> None:
        self._keys: dict[str, AESGCM] = {}

    def add(self, name: str) -> None:
        self._keys[name] = AESGCM(AESGCM.generate_key(256))

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def encrypt(self, name: str, plain: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + self._keys[name].encrypt(nonce, plain, None)

    def decrypt(self, name: str, sealed: bytes) -> bytes | None:
        try:
            return self._keys[name].decrypt(sealed[:12], sealed[12:], None)
        except (InvalidTag, ValueError):
            return None


@dataclass
class GoogleKms(KeyService):
    """Google's service: ``POST /v1/NAME:encrypt`` and ``:decrypt``, without tokens, like an emulator."""

    keys: SymmetricKeys = field(default_factory=SymmetricKeys)

    def answer(self, method: str, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name, _, verb = path.partition("?")[0].removeprefix("/v1/").rpartition(":")
        if name not in self.keys:
            return 404, _google_error(404, "NOT_FOUND", f"CryptoKey {name} not found.")
        if verb == "encrypt":
            plain = base64.b64decode(body["plaintext"])
            sealed = self.keys.encrypt(name, plain)
            return 200, {
                "name": f"{name}/cryptoKeyVersions/1",
                "ciphertext": _base64(sealed),
                "ciphertextCrc32c": str(crc32c.crc32c(sealed)),
                "verifiedPlaintextCrc32c": str(crc32c.crc32c(plain)) == str(body["plaintextCrc32c"]),
            }
        opened = self.keys.decrypt(name, base64.b64decode(body["ciphertext"]))
        if opened is None:
            return 400, _google_error(400, "INVALID_ARGUMENT", "Decryption failed: the ciphertext is invalid.")
        return 200, {"plaintext": _base64(opened), "plaintextCrc32c": str(crc32c.crc32c(opened))}


def _google_error(code: int, status: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status}}


@dataclass
class Vault(KeyService):
    """Vault's transit engine: ``POST /v1/MOUNT/encrypt/KEY`` and ``/decrypt/KEY``."""

    keys: SymmetricKeys = field(default_factory=SymmetricKeys)

    def answer(self, method: str, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if headers.get("X-Vault-Token") != TOKEN:
            return 403, {"errors": ["permission denied"]}
        mount, verb, key = path.removeprefix("/v1/").rsplit("/", 2)
        name = f"{mount}/{key}"
        if name not in self.keys:
            return 400, {"errors": ["encryption key not found"]}
        if verb == "encrypt":
            sealed = self.keys.encrypt(name, base64.b64decode(body["plaintext"]))
            return 200, {"data": {"ciphertext": f"vault:v1:{_base64(sealed)}", "key_version": 1}}
        opened = self.keys.decrypt(name, base64.b64decode(body["ciphertext"].removeprefix("vault:v1:")))
        if opened is None:
            return 400, {"errors": ["cipher: message authentication failed"]}
        return 200, {"data": {"plaintext": _base64(opened)}}


@dataclass
class AzureVault(KeyService):
    """Azure's vault: ``GET /keys/NAME/VERSION``, ``POST …/wrapkey`` and ``/unwrapkey``, after the challenge that the
    SDK expects.

    If ``may_get``, the caller may read the public key, so the SDK wraps locally.
    """

    versions: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict[str, rsa.RSAPrivateKey])
    may_get: bool = True

    def rotate(self, version: str) -> None:
        self.versions[version] = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def answer(self, method: str, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, _azure_error("Unauthorized", "AKV10000: Request is missing a Bearer or PoP token.")
        _, _, name, version, *verb = [*path.partition("?")[0].split("/"), ""]
        version = version or list(self.versions)[-1]
        key = self.versions.get(version)
        if key is None:
            return 404, _azure_error("KeyNotFound", f"A key with (name/id) {name}/{version} was not found.")
        kid = f"{self.url}/keys/{name}/{version}"
        oaep = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)
        if method == "GET":
            if not self.may_get:
                return 403, _azure_error("Forbidden", "The user does not have keys get permission.")
            numbers = key.public_key().public_numbers()
            jwk = {"kid": kid, "kty": "RSA", "n": _url64(_bytes_of(numbers.n)), "e": _url64(_bytes_of(numbers.e))}
            return 200, {"key": {**jwk, "key_ops": ["wrapKey", "unwrapKey"]}, "attributes": {"enabled": True}}
        value = _from_url64(body["value"])
        if verb[0] == "wrapkey":
            return 200, {"kid": kid, "value": _url64(key.public_key().encrypt(value, oaep))}
        try:
            return 200, {"kid": kid, "value": _url64(key.decrypt(value, oaep))}
        except ValueError:
            return 400, _azure_error("BadParameter", "The parameter is incorrect.")


def _azure_error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


class _Server(LoopbackServer):
    def __init__(self, service: KeyService) -> None:
        super().__init__(_Handler)
        self.service = service


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body comes 40 ms after its head

    def do_GET(self) -> None:
        self._respond({})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._respond(json.loads(content or b"{}"))

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _respond(self, body: dict[str, Any]) -> None:
        assert isinstance(self.server, _Server)
        service = self.server.service
        service.requests.append(f"{self.command} {self.path}")
        answer = service.planned.popleft() if service.planned else self._true_answer(service, body)
        self.send_response(answer.status)
        for name, value in {**service.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if not answer.drip_s:
            self.wfile.write(answer.body)
            return
        for byte in answer.body:
            if service.ended.wait(answer.drip_s):
                return
            self.wfile.write(bytes([byte]))

    def _true_answer(self, service: KeyService, body: dict[str, Any]) -> Answer:
        try:
            status, fields = service.answer(self.command, self.path, self.headers, body)
        except ValueError:  # invalid base64
            status, fields = 400, {"errors": ["invalid"], "error": {"code": 400, "message": "invalid"}}
        return Answer(status, json.dumps(fields).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Suppress output to stderr."""


@contextmanager
def serving(service: KeyService, *, certificate: tuple[Path, Path] | None = None) -> Generator[KeyService]:
    """Serve ``service`` at ``service.url``; over TLS if a certificate and its key are given."""
    server = _Server(service)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(
            server.socket,
            server_side=True,
            do_handshake_on_connect=False,  # or a client that does not begin TLS blocks the thread that accepts clients
        )
        scheme = "https"
    service.url = f"{scheme}://127.0.0.1:{server.port}"
    with RunningServer(server):
        try:
            yield service
        finally:
            service.ended.set()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1, and its key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "certificate.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _url64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _from_url64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _bytes_of(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
