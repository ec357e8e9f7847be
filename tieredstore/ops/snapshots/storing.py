"""Cluster snapshots in the bucket: ``<prefix>!tieredstore/snapshots/<cluster id>/<moment>.json``. A new snapshot never
replaces an old one.

``<moment>`` is the hour of an hourly snapshot, and the second of any other snapshot.

A snapshot's object is JSON with a checksum. The snapshot in it is compressed and encoded as base64. If the settings
have key pairs, the snapshot is also encrypted, in the same way as a segment.
"""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple
from urllib.parse import quote, unquote

from pydantic import Field, TypeAdapter, with_config

from tieredstore.backends.base import ObjectStore, admin_of
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    NewerVersionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ResourceNotFoundError,
    UnknownKeyError,
)
from tieredstore.format.cluster_snapshot import ClusterSnapshot, TopicSettings
from tieredstore.format.json_object import decode_base64
from tieredstore.format.manifest import WrappedDataKey
from tieredstore.format.sizes import IV_SIZE
from tieredstore.transform.chunks import DEFAULT_LEVEL, ChunkDecoder, ChunkEncoder, GrowingBuffer, fresh_memory
from tieredstore.transform.encryption import DataKey, SegmentCipher
from tieredstore.versions import CLUSTER_SNAPSHOT

if TYPE_CHECKING:
    from tieredstore.remote.manager import RemoteStorageManager
    from tieredstore.transform.keyring import KeyRing

_FOLDER: Final = "!tieredstore/snapshots/"
_NAME: Final = re.compile(r"([^/]+)/(\d{4}-\d{2}-\d{2}T\d{2}(\d{4})?Z)\.json", re.ASCII)
_HOUR: Final = "%Y-%m-%dT%HZ"
_SECOND: Final = "%Y-%m-%dT%H%M%SZ"
_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"
_HOUR_MS: Final = 3_600_000
_MAX_STORED_BYTES: Final = 64 << 20
_MAX_BYTES: Final = 512 << 20
"""The largest snapshot, as JSON: enough for millions of committed offsets."""


class StoredSnapshot(NamedTuple):
    """A snapshot's object. ``moment_ms`` is the start of the hour or second in which the snapshot was taken. ``name``
    is the same time as text: 2026-11-28T06Z or 2026-11-28T061530Z. Tuples sort by cluster and moment.
    """

    cluster_id: str
    moment_ms: int
    name: str
    key: str
    size: int
    modified_ms: int | None


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots under a key prefix. ``key_ring`` is None if the settings have no key pairs."""

    store: ObjectStore
    prefix: str
    key_ring: KeyRing | None

    @classmethod
    def of(cls, manager: RemoteStorageManager) -> Snapshots:
        """Return the snapshots of a manager's bucket, with the manager's key ring."""
        return cls(manager.store, manager.layout.prefix, manager.key_ring)

    def key(self, cluster_id: str, moment_ms: int, form: str = _HOUR) -> str:
        """Return the key of the cluster's snapshot for the hour, or the second, in which ``moment_ms`` lies."""
        return f"{self.prefix}{_FOLDER}{quote(cluster_id, safe='')}/{_text(moment_ms, form)}.json"

    def has(self, cluster_id: str, moment_ms: int) -> bool:
        """Return True if the hour's snapshot exists."""
        try:
            self.store.head(self.key(cluster_id, moment_ms))
        except ObjectNotFoundError:
            return False
        return True

    def write(self, snapshot: ClusterSnapshot, *, is_hourly: bool) -> bool:
        """Write a snapshot under the key of its hour or its second. If the key exists, write nothing and return False.

        Raise ConfigError if the snapshot is too large.
        """
        body = _seal(snapshot, self.key_ring)
        key = self.key(snapshot.cluster_id, snapshot.taken_ms, _HOUR if is_hourly else _SECOND)
        try:
            self.store.put(key, body, if_absent=True)
        except PreconditionFailedError:
            return False
        return True

    def find_all(self) -> list[StoredSnapshot]:
        """Return all snapshots, sorted by cluster and then by time, with one listing."""
        return sorted(self._list())

    def read(self, stored: StoredSnapshot) -> ClusterSnapshot:
        """Read one snapshot.

        Raise CorruptDataError if the snapshot is damaged, and NewerVersionError if a later release wrote it. Raise
        EncryptionError if its key is missing, and ObjectNotFoundError if it has expired.
        """
        where = f"the snapshot {stored.cluster_id} {stored.name}"
        snapshot = _open(self.store.get_small(stored.key, _MAX_STORED_BYTES), self.key_ring, where)
        names = (_text(snapshot.taken_ms, _HOUR), _text(snapshot.taken_ms, _SECOND))
        if snapshot.cluster_id != stored.cluster_id or stored.name not in names:
            raise CorruptDataError(f"{where} holds another snapshot: {snapshot.cluster_id} {names[1]}")
        return snapshot

    def _read_listed(self, stored: StoredSnapshot) -> ClusterSnapshot | None:
        """Read one snapshot. Return None if it has expired since the listing, so that the caller lists again."""
        try:
            return self.read(stored)
        except ObjectNotFoundError:
            if stored in self._list():
                raise
            return None

    def find(
        self, at_ms: int | None = None, cluster_id: str | None = None, *, has_schemas: bool = False
    ) -> ClusterSnapshot:
        """Read the newest snapshot, or the newest one that was taken at or before ``at_ms``.

        With ``has_schemas``, skip snapshots without schemas.

        Raise ResourceNotFoundError if there is no snapshot. Raise ConfigError if several clusters have snapshots and no
        ``cluster_id`` is given. Raise the errors of :meth:`read` too.
        """
        listed = self.find_all()
        clusters = sorted({each.cluster_id for each in listed})
        if cluster_id is None and len(clusters) > 1:
            raise ConfigError(f"the bucket has snapshots of {len(clusters)} clusters; name one: {', '.join(clusters)}")
        newest: ClusterSnapshot | None = None
        for stored in reversed(listed):
            # An hourly snapshot sorts first in its hour, but may have been taken last. So look at all snapshots of the
            # hour.
            if newest is not None and stored.moment_ms < newest.taken_ms - newest.taken_ms % _HOUR_MS:
                break
            if cluster_id in (None, stored.cluster_id) and (at_ms is None or stored.moment_ms <= at_ms):
                try:
                    snapshot = self._read_listed(stored)
                except CorruptDataError as error:
                    error.add_note("choose an earlier snapshot by its time: `tieredstore restore snapshot --list`")
                    raise
                if snapshot is None:
                    return self.find(at_ms, cluster_id, has_schemas=has_schemas)
                if (
                    (at_ms is None or snapshot.taken_ms <= at_ms)
                    and (newest is None or snapshot.taken_ms > newest.taken_ms)
                    and (snapshot.schemas is not None or not has_schemas)
                ):
                    newest = snapshot
        if newest is not None:
            return newest
        what = "snapshot with schemas" if has_schemas else "snapshot"
        of = "" if cluster_id is None else f" of the cluster {cluster_id}"
        until = "" if at_ms is None else f" at or before {_text(at_ms, _MOMENT)}"
        raise ResourceNotFoundError(f"the bucket has no {what}{of}{until}: `tieredstore restore snapshot` writes one")

    def find_topic(self, topic: str, topic_id: str) -> TopicSettings | None:
        """Return a topic's settings from the newest snapshot that has this topic id; None if no snapshot has a topic of
        this name.

        If no snapshot has the id, return the newest settings of a topic with this name. Topics of the raw layout do not
        have Kafka's ids, and a restored topic has a new id.

        Raise the errors of :meth:`read`.
        """
        of_name: TopicSettings | None = None
        for stored in sorted(self.find_all(), key=lambda each: each.moment_ms, reverse=True):
            if (snapshot := self._read_listed(stored)) is None:
                return self.find_topic(topic, topic_id)
            found = next((each for each in snapshot.topics if each.topic == topic), None)
            if found is not None and found.topic_id == topic_id:
                return found
            of_name = of_name or found
        return of_name

    def data_key(self, stored: StoredSnapshot) -> tuple[WrappedDataKey | None, Callable[[str, bytes], bytes]]:
        """Return a snapshot's wrapped data key, and a function that replaces it. The key is None without encryption.

        The function takes a key pair's id and the data key wrapped by this pair. The function returns the object's new
        content.

        Raise CorruptDataError, NewerVersionError and ObjectNotFoundError.
        """
        where = f"the snapshot {stored.cluster_id} {stored.name}"
        document = CLUSTER_SNAPSHOT.parse(_DOCUMENT, self.store.get_small(stored.key, _MAX_STORED_BYTES), where)

        def change(key_id: str, wrapped: bytes) -> bytes:
            fields = asdict(document)
            fields["encryption"] |= {"key_id": key_id, "data_key": b64encode(wrapped).decode()}
            return CLUSTER_SNAPSHOT.to_bytes(fields)

        try:
            _content_of(document)  # a rotation must not write damaged content, or content that was damaged by the read
            return (None if document.encryption is None else document.encryption.decode()), change
        except CorruptDataError as error:
            raise CorruptDataError(f"{where} is damaged: {error}") from error

    def may_need(self, stored: StoredSnapshot, key_id: str) -> bool:
        """Return True if a snapshot is encrypted by this key pair, or is damaged; False if it has expired."""
        try:
            wrapped, _ = self.data_key(stored)
        except ObjectNotFoundError:
            return False
        except (CorruptDataError, NewerVersionError):
            return True
        return wrapped is not None and wrapped.key_id == key_id

    def expire(self, max_age_ms: int, now_ms: int) -> list[StoredSnapshot]:
        """Delete snapshots older than ``max_age_ms``, but never a cluster's newest one. Return the deleted snapshots.

        The age of a snapshot is taken by the earlier of ``now_ms``, which is this machine's time, and the store's time.
        So nothing is deleted early if one of the two clocks jumps ahead. If the store has no clock, or does not list
        times, nothing is deleted.
        """
        of_the_store = admin_of(self.store).now_ms()
        listed = self.find_all()
        newest = {each.cluster_id: each for each in listed}  # the list is sorted by time: the last one wins
        old = [
            each
            for each in listed
            if of_the_store is not None
            and each.modified_ms is not None
            and each.modified_ms < min(now_ms, of_the_store) - max_age_ms
            and each != newest[each.cluster_id]
        ]
        if old:
            self.store.delete([each.key for each in old])
        return old

    def _list(self) -> Iterator[StoredSnapshot]:
        folder = f"{self.prefix}{_FOLDER}"
        for info in self.store.list(folder):
            match = _NAME.fullmatch(info.key.removeprefix(folder))
            moment_ms = None if match is None else _parse(match[2], _HOUR if match[3] is None else _SECOND)
            if match is not None and moment_ms is not None:
                yield StoredSnapshot(unquote(match[1]), moment_ms, match[2], info.key, info.size, info.modified_ms)


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Encryption:
    """The data key, wrapped by a key pair, and the AAD. Both are in base64."""

    key_id: str
    data_key: str
    aad: str

    def decode(self) -> WrappedDataKey:
        """Return the wrapped data key with its AAD. Raise CorruptDataError if one of the two is not base64."""
        data_key, aad = (decode_base64(getattr(self, name), name, padded=True) for name in ("data_key", "aad"))
        return WrappedDataKey(self.key_id, data_key, aad)


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class _Document:
    """The object's JSON. ``size`` is the size of the snapshot's own JSON. ``sha256`` is the digest of the decoded
    ``content``."""

    size: Annotated[int, Field(ge=0, le=_MAX_BYTES)]
    encryption: _Encryption | None
    sha256: str
    content: str


_DOCUMENT: Final = TypeAdapter(_Document)


def _seal(snapshot: ClusterSnapshot, key_ring: KeyRing | None) -> bytes:
    plain = snapshot.to_json()
    encryption = cipher = None
    if key_ring is not None:
        data_key = DataKey.generate()
        wrapped = b64encode(key_ring.wrap(data_key.key)).decode()
        encryption = {"key_id": key_ring.active_id, "data_key": wrapped, "aad": b64encode(data_key.aad).decode()}
        cipher = SegmentCipher(data_key)
    encoder = ChunkEncoder(DEFAULT_LEVEL, cipher)
    content = bytes(encoder.encode(memoryview(plain), os.urandom(IV_SIZE), GrowingBuffer()))
    digest = hashlib.sha256(content).hexdigest()
    body = CLUSTER_SNAPSHOT.to_bytes({
        "size": len(plain), "encryption": encryption, "sha256": digest, "content": b64encode(content).decode(),
    })  # fmt: skip
    if len(plain) > _MAX_BYTES or len(body) > _MAX_STORED_BYTES:
        raise ConfigError(f"a snapshot of the cluster {snapshot.cluster_id} would have {len(plain)} bytes: too large")
    return body


def _open(raw: bytes | None, key_ring: KeyRing | None, where: str) -> ClusterSnapshot:
    document = CLUSTER_SNAPSHOT.parse(_DOCUMENT, raw, where)
    try:
        content = _content_of(document)
        plain = fresh_memory(document.size)
        cipher = _cipher_of(document.encryption, key_ring)
        ChunkDecoder(compressed=True, cipher=cipher).decode_into(memoryview(content), plain)
    except CorruptDataError as error:
        raise CorruptDataError(f"{where} is damaged: {error}") from error
    return ClusterSnapshot.from_json(bytes(plain), where)


def _content_of(document: _Document) -> bytes:
    content = decode_base64(document.content, "content", padded=True)
    if hashlib.sha256(content).hexdigest() != document.sha256:
        raise CorruptDataError("its checksum does not match")
    return content


def _cipher_of(encryption: _Encryption | None, key_ring: KeyRing | None) -> SegmentCipher | None:
    if encryption is None:
        return None
    if key_ring is None:
        raise UnknownKeyError(
            f"the snapshot is encrypted by key pair {encryption.key_id!r:.80}: add it to encryption.key.pairs"
        )
    key = encryption.decode()
    return SegmentCipher(DataKey(key_ring.unwrap(key.key_id, key.wrapped), key.aad))


def _text(moment_ms: int, form: str) -> str:
    return datetime.fromtimestamp(moment_ms // 1000, UTC).strftime(form)


def _parse(text: str, form: str) -> int | None:
    try:
        return int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()) * 1000
    except ValueError:
        return None
