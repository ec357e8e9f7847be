"""The layout of the keys under a prefix: its hash bits, and the object that records it, so that all writers use the
same one.

Hash bits spread a bucket's partitions over the service's shards, computed as in Pinterest's uploader.
``<prefix>!tieredstore/layout.json`` records the layout.

The first writer that stores a segment in a layout other than the plugin's writes ``layout.json``. The object never
changes afterwards.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from tieredstore.backends.base import ObjectStore
from tieredstore.config.endpoint import BITS, CLUSTER, LAYOUT, PINTEREST, PLUGIN
from tieredstore.errors import (
    ConfigError,
    ObjectNotFoundError,
    PreconditionFailedError,
    TieredStoreError,
)
from tieredstore.format.keys import parse_key
from tieredstore.model import TopicIdPartition
from tieredstore.versions import LAYOUT_RECORD

STATE: Final = "!tieredstore/"
"""Keys that begin with ``key.prefix`` and this text belong to this project's own state, not to segments."""

_NAME: Final = f"{STATE}layout.json"
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the keys under a prefix."""

    bits: int = 0
    cluster: str | None = None
    is_raw: bool = False

    @property
    def is_default(self) -> bool:
        """True for the plugin's own layout."""
        return not self.bits and not self.is_raw

    def __str__(self) -> str:
        name = PINTEREST if self.is_raw else PLUGIN
        return f"{LAYOUT}={name}, {BITS}={self.bits}, {CLUSTER}={self.cluster or ''}"

    def to_bytes(self) -> bytes:
        """Return the content of the layout object."""
        layout = PINTEREST if self.is_raw else PLUGIN
        return LAYOUT_RECORD.to_bytes({"layout": layout, "entropy_bits": self.bits, "cluster": self.cluster})

    @classmethod
    def parse(cls, raw: bytes | None, key: str) -> Layout:
        """Parse the recorded layout. Raise CorruptDataError if it is damaged."""
        document = LAYOUT_RECORD.parse(_DOCUMENT, raw, key)
        return cls(document.entropy_bits, document.cluster, document.layout == PINTEREST)


def entropy_bits(cluster: str, topic: str, partition: int, count: int) -> str:
    """Return the first ``count`` bits of MD5(``cluster-topic-partition``), highest first, as text of 0 and 1."""
    digest = hashlib.md5(f"{cluster}-{topic}-{partition}".encode(), usedforsecurity=False).digest()
    return f"{int.from_bytes(digest, 'big'):0128b}"[:count]


def bits_folder(cluster: str, where: TopicIdPartition, count: int) -> str:
    """Return the bits and a slash, which follow the prefix in a key. Return an empty text if ``count`` is 0."""
    return f"{entropy_bits(cluster, where.topic, where.partition, count)}/" if count else ""


def all_folders(count: int) -> list[str]:
    """Return the names of all folders of ``count`` bits, sorted. If ``count`` is 0, there is one folder with an empty
    name."""
    return [f"{number:0{count}b}/" for number in range(1 << count)] if count else [""]


@dataclass(frozen=True, slots=True)
class _Document:
    """The JSON document in the layout object."""

    layout: Literal["plugin", "pinterest"]
    entropy_bits: Annotated[int, Field(ge=0, le=128)]
    cluster: str | None


_DOCUMENT: Final = TypeAdapter(_Document)


def layout_key(prefix: str) -> str:
    """Return the key of the layout object."""
    return f"{prefix}{_NAME}"


def read_layout(store: ObjectStore, prefix: str) -> Layout | None:
    """Return the layout recorded under the prefix; None if none is recorded. This takes one request."""
    key = layout_key(prefix)
    try:
        return Layout.parse(store.get_small(key, _MAX_BYTES), key)
    except ObjectNotFoundError:
        return None


def check_layout(store: ObjectStore, prefix: str, layout: Layout) -> bool:
    """Return True if ``layout`` is recorded, and False if no layout is recorded. Raise ConfigError if another layout is
    recorded."""
    recorded = read_layout(store, prefix)
    if recorded is None:
        return False
    if recorded != layout:
        raise ConfigError(
            f"the objects under {prefix!r} of {store.identity} were written with {recorded}; the settings say {layout}"
        )
    return True


def record_layout(store: ObjectStore, prefix: str, layout: Layout) -> None:
    """Record ``layout`` if no layout is recorded. Raise ConfigError if another layout is recorded, even by a concurrent
    writer.

    Also raise ConfigError if segments exist under the plugin's keys, because readers with ``layout`` would not find
    them.
    """
    if check_layout(store, prefix, layout):
        return
    for info in store.list(prefix):
        if parse_key(prefix, info.key) is not None:
            raise ConfigError(
                f"segments under {prefix!r} of {store.identity} have the plugin's own keys, and readers with {layout} "
                "would not find them: choose another key.prefix"
            )
    try:
        store.put(layout_key(prefix), layout.to_bytes(), if_absent=True)
    except PreconditionFailedError:
        check_layout(store, prefix, layout)


def _unwrap(store: ObjectStore) -> ObjectStore:
    """Remove the wrappers that do not affect the layout, and return the store inside."""
    while isinstance(inner := getattr(store, "inner", None), ObjectStore) and not hasattr(store, "layout"):
        store = inner
    return store


def other_layout(store: ObjectStore, prefix: str) -> Layout | None:
    """Return the layout that is recorded under the prefix; None if none is recorded, or ``store`` was opened with a
    layout.

    The look-up takes one request, or two if a layout is recorded.
    """
    if hasattr(_unwrap(store), "layout"):
        return None  # such a store itself compares its layout with the recorded one, before its first request
    try:
        # Most stores have no recorded layout, so send a HEAD first. The answer to a HEAD has no body, so a faulty store
        # cannot corrupt it.
        store.head(layout_key(prefix))
    except ObjectNotFoundError:
        return None
    recorded = read_layout(store, prefix)
    return None if recorded is None or recorded.is_default else recorded


def refuse_other_layout(store: ObjectStore, prefix: str) -> None:
    """Raise ConfigError if the prefix has a recorded layout, but ``store`` was opened without a layout.

    Call this before writing, because readers with the recorded layout would not find objects under the plugin's keys.
    """
    other = other_layout(store, prefix)
    if other is not None:
        raise ConfigError(
            f"the objects under {prefix!r} of {store.identity} were written with {other}, which the settings lack: add "
            "these settings, or choose another key.prefix"
        )


def layout_hint(store: ObjectStore, prefix: str) -> list[str]:
    """Return a sentence if the prefix has a recorded layout, but ``store`` was opened without a layout."""
    try:
        other = other_layout(store, prefix)
    except TieredStoreError:
        return []
    return [] if other is None else [f"the objects here were written with {other}, which the settings lack"]
