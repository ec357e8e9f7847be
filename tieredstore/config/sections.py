"""Settings that wings attach, by entry points of the group ``tieredstore.settings``: ``module:SECTIONS``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import entry_points

from tieredstore.config.fields import SettingsGroup


@dataclass(frozen=True, slots=True)
class Section:
    """One table of docs/settings.md; ``under`` precedes the names of its groups."""

    title: str
    intro: str
    groups: tuple[type[SettingsGroup], ...]
    under: str = ""


@functools.cache
def wing_sections() -> tuple[Section, ...]:
    """The sections of all installed wings. A wing whose folder is absent is skipped; any other failure to import is
    raised as it is."""
    found: list[Section] = []
    for point in sorted(entry_points(group="tieredstore.settings"), key=lambda point: point.name):
        try:
            sections: tuple[Section, ...] = point.load()
        except ModuleNotFoundError as error:
            if error.name and f"{point.module}.".startswith(f"{error.name}."):
                continue
            raise
        found += sections
    return tuple(found)


def wing_groups() -> list[type[SettingsGroup]]:
    """All groups of the installed wings."""
    return [group for section in wing_sections() for group in section.groups]
