"""Imports a user's own class that a setting names."""

from __future__ import annotations

import importlib

from tieredstore.errors import ConfigError


def import_class(setting: str, name: str, base: type, otherwise: str) -> type:
    """Return the subclass of ``base`` named ``package.module.Class``, the value of ``setting``.

    Raise ConfigError if the name cannot be imported, or is not a subclass of ``base``. After a failed import, the
    message includes ``otherwise``, the values that the setting accepts.
    """
    module_name, _, class_name = name.rpartition(".")
    try:
        own_class: object = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{setting} is {name!r:.120}, {otherwise}: {error}") from error
    if not isinstance(own_class, type) or not issubclass(own_class, base):
        raise ConfigError(f"{setting} is {name!r:.120}, which is not a subclass of {base.__name__}")
    return own_class
