"""Imports a user's own class or function that a setting names, and finds classes that installed packages register."""

from __future__ import annotations

import importlib
import re
from typing import Final

from tieredstore.errors import ConfigError

STORES: Final = "tieredstore.stores"
"""Group of entry points for names in ``storage.backend.class``; values are ``package.module:Class``."""

KEY_SOURCES: Final = "tieredstore.key_sources"
"""Group of entry points for ``private.key.kms``."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def import_named(setting: str, name: str, otherwise: str) -> object:
    """Return the object named ``package.module.name`` or ``package.module:name``, the value of ``setting``.

    Raise ConfigError if the name cannot be imported. The message includes ``otherwise``, the values that the setting
    accepts.
    """
    module_name, _, own_name = name.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), own_name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a relative name
        raise ConfigError(f"{setting} is {name!r:.120}, {otherwise}: {error}") from error


def import_class(setting: str, name: str, base: type, otherwise: str) -> type:
    """Return the subclass of ``base`` with this name. Raise ConfigError as :func:`import_named` does, and for an object
    that is not a subclass of ``base``."""
    own_class = import_named(setting, name, otherwise)
    if not isinstance(own_class, type) or not issubclass(own_class, base):
        raise ConfigError(f"{setting} is {name!r:.120}, which is not a subclass of {base.__name__}")
    return own_class


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
