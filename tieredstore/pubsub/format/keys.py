"""Keys of batches: ``[<hh>/]<path>/<client request id>_<server request id>_<ms>_<attempt>_<host>``.

They tell neither the order nor the time of records. ``hh`` spreads them over 256 prefixes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from Crypto.Hash import MD2

from tieredstore.errors import ConfigError

PREFIXES: Final = tuple(f"{number:02x}" for number in range(256))
"""All values of ``hh``."""

_NAME: Final = re.compile(r"(-?\d{1,20})_(-?\d{1,20})_(\d{1,20})_(\d{1,10})_([^/]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What a key says. The two ids are of the batch's first Message; ``ms`` is when its writing began."""

    path: str
    client_request_id: int
    server_request_id: int
    ms: int
    attempt: int
    host: str
    is_hashed: bool = True

    def __str__(self) -> str:
        name = f"{self.client_request_id}_{self.server_request_id}_{self.ms}_{self.attempt}_{self.host}"
        return f"{folder_of(self.path, self.client_request_id if self.is_hashed else None)}{name}"


def folder_of(path: str, client_request_id: int | None) -> str:
    """What a key of the path begins with, the last ``/`` included; None: without ``hh``."""
    hashed = "" if client_request_id is None else f"{key_hash(client_request_id)}/"
    return f"{hashed}{path}/"


def parse_batch_key(key: str, path: str) -> BatchKey | None:
    """What a key under ``path`` says; None for one that MemQ's S3 handler would not write there."""
    folder, _, name = key.rpartition("/")
    fields = _NAME.fullmatch(name)
    hashed = folder != path
    if fields is None or (hashed and folder[2:] != f"/{path}"):
        return None
    client, server, ms, attempt = map(int, fields.groups()[:4])
    if hashed and folder[:2] != key_hash(client):
        return None
    return BatchKey(path, client, server, ms, attempt, fields[5], hashed)


def check_path(path: str) -> str:
    """``path`` as it is; ConfigError if keys below it could be mistaken for those of another."""
    parts = path.split("/")
    if not all(parts) or {".", ".."} & set(parts) or len(path.encode("utf-8", "replace")) > 512 or "\0" in path:
        raise ConfigError(f"{path!r} is no path of keys: names parted by one /, of 512 bytes at most")
    return path


def key_hash(client_request_id: int) -> str:
    """``hh`` of a key: the first two hexadecimal digits of MD2 of the number in decimal."""
    digest = MD2.new(str(client_request_id).encode()).hexdigest()  # noqa: S303  it spreads keys, and MemQ chose it
    return digest[:2]
