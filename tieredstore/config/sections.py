"""The settings of optional parts, such as pipelines. These parts register ``module:SECTIONS`` as entry points.

The group of entry points is ``tieredstore.settings``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tieredstore.config.fields import SettingsGroup
from tieredstore.installation import attached_parts


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """One table of docs/reference/settings.md. The names of all its properties begin with ``under``."""

    title: str
    intro: str
    groups: tuple[type[SettingsGroup], ...]
    under: str = ""


@functools.cache
def wing_sections() -> tuple[SettingsSection, ...]:
    """Return the sections of all installed optional parts."""
    return tuple(section for sections in attached_parts("tieredstore.settings") for section in sections)


def wing_groups() -> list[type[SettingsGroup]]:
    """Return all groups of the installed optional parts."""
    return [group for section in wing_sections() for group in section.groups]
