"""The settings of a bucket in a broker's ``server.properties``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tieredstore.config.properties import own_properties, read_properties
from tieredstore.config.values import plain
from tieredstore.errors import ConfigError

_OF_THE_BUCKET: Final = (
    "chunk.",
    "compression.",
    "custom.",
    "encryption.",
    "endpoint.",
    "key.",
    "segment.",
    "storage.",
)
"""Prefixes of the names of the properties that every reader or writer of the bucket needs. All other properties set the
broker's caches, threads and limits.
"""

_PATHS: Final = (".root", ".path", ".file")


def bucket_properties(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the bucket's settings in a broker's file, without the plugin's prefix, and the names of the file's other
    settings.

    Relative paths become absolute. Raise ConfigError if the file has no settings of a store.
    """
    own = own_properties(read_properties(path), str(path))
    if "storage.backend.class" not in own.texts:
        raise ConfigError(
            f"{path} has no settings of tiered storage: in a broker's file they begin with rsm.config., as in "
            "rsm.config.storage.backend.class"
        )
    taken = {name: text for name, text in own.texts.items() if name.startswith(_OF_THE_BUCKET)}
    for name, text in taken.items():
        if name.endswith(_PATHS):
            taken[name] = str(path.absolute().parent / plain(text))
    left = [name for name in own.texts if name not in taken] if own.prefix else []
    return taken, left
