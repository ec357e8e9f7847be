"""What installed packages offer as entry points: stores and the like by a name, and what wings attach to the core."""

from __future__ import annotations

import re
from typing import Any, Final

from tieredstore.installation import load_attached

STORES: Final = "tieredstore.stores"
"""The group of entry points whose names ``storage.backend.class`` may have; values are ``package.module:Class``."""

KEY_SOURCES: Final = "tieredstore.key_sources"
"""The same for ``private.key.kms``."""

QUEUES: Final = "tieredstore.queues"
"""The same for ``pubsub.queue``."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def installed_class(group: str, name: str) -> str | None:
    """What installed packages call ``name`` in that group of entry points; None if there is no such.

    As ``package.module:Class``. Nothing is imported. Raises ValueError if two packages mean different classes by it.
    """
    if not _NAME.fullmatch(name):
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415  fifty modules that most settings do without

    # Two packages may well offer the same class; only different ones leave a doubt.
    classes = sorted({entry_point.value for entry_point in entry_points(group=group, name=name)})
    if len(classes) > 1:
        raise ValueError(f"installed packages mean {' and '.join(classes)} by it: name the class itself")
    return classes[0] if classes else None


def attached_parts(group: str) -> list[Any]:
    """List what wings attach to the core in a group of entry points; see :func:`load_attached`."""
    from importlib.metadata import entry_points  # noqa: PLC0415  as above

    return load_attached(entry_points(group=group))
