"""Store classes that installed packages offer by a name of their own, as entry points."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "tieredstore.stores"
"""The group of entry points: their names are those of stores, their values ``package.module:Class``."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def installed_store(name: str) -> str | None:
    """The class that installed packages call ``name``, as ``package.module:Class``; None if there is no such.

    Nothing is imported. Raises ValueError if two packages mean different classes by it.
    """
    if not _NAME.fullmatch(name):
        return None
    # Two packages may well offer the same class; only different ones leave a doubt.
    classes = sorted({entry_point.value for entry_point in entry_points(group=GROUP, name=name)})
    if len(classes) > 1:
        raise ValueError(f"installed packages mean {' and '.join(classes)} by it: name the class itself")
    return classes[0] if classes else None
