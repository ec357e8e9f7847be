"""Imports a user's own class or function that a setting names."""

from __future__ import annotations

import importlib

from tieredstore.errors import ConfigError


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
