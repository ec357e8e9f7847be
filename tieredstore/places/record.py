"""``<prefix>!tieredstore/layout.json``: how the keys under a prefix are made, so that nobody makes them otherwise.

Written by the first who writes a segment under a layout that is not the plugin's own; nobody changes it after that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, cast

from tieredstore.backends.base import ObjectStore
from tieredstore.config.endpoint import BITS, CLUSTER, LAYOUT, PINTEREST, PLUGIN
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    ObjectNotFoundError,
    PreconditionFailedError,
    TieredStoreError,
    excerpt,
)
from tieredstore.format.keys import parse_key

STATE: Final = "!tieredstore/"
"""What stands behind the prefix of everything that is our own, and no segment."""

_NAME: Final = f"{STATE}layout.json"
_MAX_BYTES: Final = 4096
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How the keys under a prefix are made."""

    bits: int = 0
    cluster: str | None = None
    is_raw: bool = False

    @property
    def is_default(self) -> bool:
        """Whether keys are the plugin's own."""
        return not self.bits and not self.is_raw

    def __str__(self) -> str:
        name = PINTEREST if self.is_raw else PLUGIN
        return f"{LAYOUT}={name}, {BITS}={self.bits}, {CLUSTER}={self.cluster or ''}"

    def to_bytes(self) -> bytes:
        """The object's content."""
        layout = PINTEREST if self.is_raw else PLUGIN
        return json.dumps(
            {"version": _VERSION, "layout": layout, "entropy_bits": self.bits, "cluster": self.cluster}
        ).encode()

    @classmethod
    def parse(cls, raw: bytes | None, key: str) -> Layout:
        """What the object says; CorruptDataError if it is none."""
        try:
            document = cast("dict[str, Any]", json.loads(raw or b""))
            version, layout, bits = document["version"], document["layout"], document["entropy_bits"]
            cluster = document["cluster"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptDataError(f"{key} is damaged: it does not say how the keys here are made") from error
        is_known = type(bits) is int and 0 <= bits <= 128 and (cluster is None or isinstance(cluster, str))
        if version != _VERSION or layout not in (PLUGIN, PINTEREST) or not is_known:
            raise CorruptDataError(f"{key} says what this reader does not know: {excerpt(document)}")
        return cls(bits, cluster, layout == PINTEREST)


def layout_key(prefix: str) -> str:
    """The object's key."""
    return f"{prefix}{_NAME}"


def read_layout(store: ObjectStore, prefix: str) -> Layout | None:
    """What is recorded under the prefix, by one request; None if nothing is."""
    key = layout_key(prefix)
    try:
        return Layout.parse(store.get_small(key, _MAX_BYTES), key)
    except ObjectNotFoundError:
        return None


def check_layout(store: ObjectStore, prefix: str, layout: Layout) -> bool:
    """Whether just this layout is recorded; False if none is. ConfigError for another one."""
    recorded = read_layout(store, prefix)
    if recorded is None:
        return False
    if recorded != layout:
        raise ConfigError(
            f"what lies under {prefix!r} of {store.identity} was written with {recorded}; the settings say {layout}"
        )
    return True


def record_layout(store: ObjectStore, prefix: str, layout: Layout) -> None:
    """Record the layout where none is recorded: of several who do it at once all agree, or all but one are told.

    ConfigError where segments lie under the plugin's own keys already, which nobody would find any more.
    """
    if check_layout(store, prefix, layout):
        return
    for info in store.list(prefix):
        if parse_key(prefix, info.key) is not None:
            raise ConfigError(
                f"there are segments under {prefix!r} of {store.identity} whose keys are the plugin's own, and with "
                f"{layout} nobody would find them: choose another key.prefix"
            )
    try:
        store.put(layout_key(prefix), layout.to_bytes(), if_absent=True)
    except PreconditionFailedError:
        check_layout(store, prefix, layout)


def laid_out(store: ObjectStore) -> ObjectStore:
    """The store within wrappers that have no say in where anything lies."""
    while isinstance(inner := getattr(store, "inner", None), ObjectStore) and not hasattr(store, "layout"):
        store = inner
    return store


def other_layout(store: ObjectStore, prefix: str) -> Layout | None:
    """The layout that is recorded under the prefix, if ``store`` was opened without one; one request for most."""
    if hasattr(laid_out(store), "layout"):
        return None  # it looks itself, before its first request
    try:
        # Most stores have none, and the answer to this has no body that a store could say wrong things about.
        store.head(layout_key(prefix))
    except ObjectNotFoundError:
        return None
    recorded = read_layout(store, prefix)
    return None if recorded is None or recorded.is_default else recorded


def refuse_other_layout(store: ObjectStore, prefix: str) -> None:
    """ConfigError if other keys are recorded under the prefix than ``store`` was opened with.

    For whoever is about to write: what has the plugin's keys there is found by none of those who read the others.
    """
    other = other_layout(store, prefix)
    if other is not None:
        raise ConfigError(
            f"what lies under {prefix!r} of {store.identity} was written with {other}, which the settings do "
            "not say: add these settings, or choose another key.prefix"
        )


def layout_hint(store: ObjectStore, prefix: str) -> list[str]:
    """A sentence if other keys are recorded under the prefix than ``store`` was opened with."""
    try:
        other = other_layout(store, prefix)
    except TieredStoreError:
        return []
    return [] if other is None else [f"what lies here was written with {other}, which the settings do not say"]
