"""Groups of settings: pydantic models with a field for each property. Each field defines which texts it accepts.

Optional parts, such as the uploader, register the sections of their groups (``module:SECTIONS``) as entry points of the
group ``tieredstore.settings``. An entry point's name is the first component of the names of its properties: ``pubsub``
for ``pubsub.*``. So a file imports only the parts whose properties it has.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from tieredstore.config.values import Kind
from tieredstore.installation import load_attached

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class SettingsGroup(BaseModel):
    """Base class of settings groups, frozen. A field's alias is its property's name, and its :class:`Kind` parses
    the text.
    """

    # hide_input_in_errors: pydantic's error text must not contain a secret
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    client_properties: ClassVar[str] = ""
    """The prefix of Kafka client properties. The field ``kafka`` holds these properties as pairs of name and text.
    Empty if the group has no such properties.
    """

    beside: ClassVar[str] = ""
    """The prefix of the group's properties, if only an optional part reads their values, and reads them both with and
    without the prefix ``rsm.config.``. Empty for groups that are read with the store's settings.
    """


def property_fields(group: type[SettingsGroup]) -> Iterator[tuple[str, FieldInfo, Kind]]:
    """Yield name, field and kind of each property that ``group`` reads, in the order of the class."""
    for info in group.model_fields.values():
        if info.alias is not None:
            yield info.alias, info, next(kind for kind in info.metadata if isinstance(kind, Kind))


def property_names(group: type[SettingsGroup]) -> list[str]:
    """Return the names of the properties that ``group`` reads."""
    return [name for name, _, _ in property_fields(group)]


def reads(group: type[SettingsGroup], name: str) -> bool:
    """Return True if ``group`` has the property ``name``."""
    is_clients = bool(group.client_properties) and name.startswith(group.client_properties)
    return is_clients or any(info.alias == name for info in group.model_fields.values())


def broken_rule(name: str, why: str) -> PydanticCustomError:
    """Return a validator's error about several properties; ``why`` is a sentence without values."""
    return PydanticCustomError("rule", "{why}", {"name": name, "why": why})


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
