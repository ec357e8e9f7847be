"""Entry points of installed packages, such as named stores and key sources."""

from __future__ import annotations

import re
from typing import Final

STORES: Final = "tieredstore.stores"
"""Group of entry points for names in ``storage.backend.class``; values are ``package.module:Class``."""

KEY_SOURCES: Final = "tieredstore.key_sources"
"""Group of entry points for ``private.key.kms``."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def installed_class(group: str, name: str) -> str | None:
    """Return the class that an installed package registers as ``name`` in a group of entry points; None if no package
    does.

    The class is returned as ``package.module:Class``, not imported. Raise ValueError if two packages register different
    classes.
    """
    if not _NAME.fullmatch(name):
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415  loads fifty modules, rarely needed

    # Two packages may register the same class. Only different classes are ambiguous.
    classes = sorted({entry_point.value for entry_point in entry_points(group=group, name=name)})
    if len(classes) > 1:
        raise ValueError(
            f"installed packages register several classes under this name ({' and '.join(classes)}): name the class "
            "itself"
        )
    return classes[0] if classes else None
