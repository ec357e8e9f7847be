"""The settings of optional parts, such as the uploader. These parts register ``module:SECTIONS`` as entry points.

The group of entry points is ``tieredstore.settings``. An entry point's name is the first component of the names of its
properties: ``pubsub`` for ``pubsub.*``. So a file imports only the parts whose properties it has.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.config.fields import SettingsGroup
from tieredstore.installation import load_attached

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """One table of docs/reference/settings.md. The names of all its properties begin with ``under``."""

    title: str
    intro: str
    groups: tuple[type[SettingsGroup], ...]
    under: str = ""


@functools.cache
def registered_parts() -> tuple[EntryPoint, ...]:
    """Return the entry points of all optional parts with settings, including parts whose folder is absent."""
    from importlib.metadata import entry_points  # noqa: PLC0415  loads fifty modules, rarely needed

    return tuple(entry_points(group="tieredstore.settings"))


def wing_sections(parts: Container[str] | None = None) -> tuple[SettingsSection, ...]:
    """Return the sections of the installed optional parts; with ``parts``, only of the parts with these names."""
    points = [point for point in registered_parts() if parts is None or point.name in parts]
    return tuple(section for sections in load_attached(points) for section in sections)


def wing_groups(parts: Container[str] | None = None) -> list[type[SettingsGroup]]:
    """Return all groups of the installed optional parts; with ``parts``, only of the parts with these names."""
    return [group for section in wing_sections(parts) for group in section.groups]
