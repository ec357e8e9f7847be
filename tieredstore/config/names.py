"""The known names of properties, and suggestions for unknown ones."""

from __future__ import annotations

import functools
from typing import Final

from tieredstore.config.encryption import PAIRS, EncryptionProperties, pair_id
from tieredstore.config.endpoint import ENDPOINT, UPLOADER_LAYOUT, EndpointSettings, rule_of
from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings, IndexCacheSettings, ManifestCacheSettings
from tieredstore.config.fields import SettingsGroup, property_names, reads, registered_parts, wing_groups
from tieredstore.config.jvm import FAMILIES, OLD_NAMES, JvmProperties
from tieredstore.config.nearest import did_you_mean
from tieredstore.config.properties import DEFAULT_PREFIX
from tieredstore.config.settings import Settings
from tieredstore.config.source import MAX_SHOWN, SettingsReader
from tieredstore.config.storage import ProxySettings
from tieredstore.errors import ConfigError

_OF_ALL_STORES: Final[tuple[type[SettingsGroup], ...]] = (
    Settings,
    EncryptionProperties,
    ProxySettings,
    FetchSettings,
    ManifestCacheSettings,
    IndexCacheSettings,
    ChunkCacheSettings,
    EndpointSettings,
    JvmProperties,
)
_NAMES_OF_ALL_STORES: Final = frozenset(name for group in _OF_ALL_STORES for name in property_names(group))


def core_groups() -> tuple[type[SettingsGroup], ...]:
    """Return all groups of the core that read properties by fixed names."""
    from tieredstore.config.clouds import CLOUD_GROUPS  # noqa: PLC0415  stores without a cloud do not need it

    return (*_OF_ALL_STORES, *CLOUD_GROUPS)


def is_core_name(name: str) -> bool:
    """Return True if the core has a property of this name."""
    return name in _NAMES_OF_ALL_STORES or (name.startswith("storage.") and name in core_names())


def is_known_name(name: str) -> bool:
    """Return True if the core or an installed optional part has a property of this name."""
    return is_core_name(name) or any(reads(group, name) for group in wing_groups({_part_of(name)}))


@functools.cache
def core_names() -> frozenset[str]:
    """Return all fixed names of the core, without prefix."""
    return frozenset(name for group in core_groups() for name in property_names(group))


@functools.cache
def known_names() -> frozenset[str]:
    """Return all fixed names of the core and of the installed optional parts."""
    return core_names().union(*map(property_names, wing_groups()))


_MAX_COMPARED: Final = MAX_SHOWN  # limit of unknown names that get a suggestion, because more would take too long


def check_is_ours(reader: SettingsReader) -> None:
    """Raise ConfigError if no property belongs to this package, for example because the file is a Kafka client's
    properties file.

    For such a file, one sentence is more helpful than one error for each unknown name. Properties ``metrics.*`` do not
    show that the file is for this package, because a broker has such properties too.
    """
    # Check ``storage.*`` first, because the list of known names imports all optional parts.
    if not reader.values or any(name.startswith("storage.") for name in reader.values):
        return
    if all(name.startswith("metrics.") for name in known_names().intersection(reader.values)):
        raise ConfigError(
            f"{reader.own.source} has no settings of a store: no name starts with storage. or "
            f"{DEFAULT_PREFIX}storage.; name the file that has them, or write a settings file with tieredstore init"
        )


def check_names(reader: SettingsReader, open_beginnings: tuple[str, ...] = ()) -> list[type[SettingsGroup]]:
    """Record a problem for every unknown name, except under the prefixes ``open_beginnings``. Return each optional
    part's settings groups that read at least one of the properties.
    """
    # Prefixes under which any name is accepted.
    right = (*FAMILIES, *open_beginnings)
    others = [
        name
        for name in reader.values
        if not (name.startswith(right) or is_core_name(name)) and pair_id(name) is None and rule_of(name) is None
    ]
    if not others:
        return []
    wings = wing_groups({_part_of(name) for name in others})
    unknown = [name for name in others if not any(reads(group, name) for group in wings)]
    for place, name in enumerate(unknown):
        reader.note_stray(name, _what_is_wrong(name, reader) if place < _MAX_COMPARED else "is not known")
    return [group for group in wings if any(reads(group, name) for name in others)]


def _part_of(name: str) -> str:
    return name.partition(".")[0]


def _what_is_wrong(name: str, reader: SettingsReader) -> str:
    for old, new in OLD_NAMES.items():
        if name.startswith(old):
            return f"is an old name; the new name is {reader.spell(new + name.removeprefix(old))}"
    part = _part_of(name)
    if any(point.name == part for point in registered_parts()) and not wing_groups({part}):
        return f"belongs to tieredstore.{part}, which this installation lacks: install it, or remove the property"
    return f"is not known{did_you_mean(name, candidates(reader), show=reader.spell)}"


def candidates(reader: SettingsReader) -> frozenset[str]:
    """Return all names that the user may have meant by an unknown name. The names include the properties of each listed
    key pair."""
    ids = [key_id.strip() for key_id in reader.values.get(PAIRS, "").split(",")]
    halves = ("public", "private")
    return known_names() | {f"{PAIRS}.{key_id}.{half}.key.file" for key_id in ids if key_id for half in halves}


def forgotten_names(reader: SettingsReader) -> list[str]:
    """Return this package's properties that lack the prefix, in a source where other properties have it. Neither the
    plugin nor this package reads such properties.

    Exclude ``metrics.*``, because a broker has such properties too. Also exclude names that are read with and without
    the prefix.
    """
    if not reader.own.others:
        return []
    beside = (ENDPOINT, UPLOADER_LAYOUT, *(group.beside for group in wing_groups() if group.beside))
    known = known_names()
    return [name for name in reader.own.others if name in known and not name.startswith(("metrics.", *beside))]
