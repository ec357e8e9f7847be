"""Properties: reads ``.properties`` files, selects the plugin's properties or those of a bucket, and tells which
properties have an effect in this package."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike, fspath
from pathlib import Path
from typing import Final, cast

from tieredstore.config.values import plain
from tieredstore.errors import ConfigError
from tieredstore.model import GivenProperties, Properties

DEFAULT_PREFIX: Final = "rsm.config."
"""Kafka's default for :data:`PREFIX_PROPERTY`."""

PREFIX_PROPERTY: Final = "remote.log.storage.manager.impl.prefix"
"""The broker's property whose value is the prefix of the plugin's properties."""

_OF_THE_BUCKET: Final = (
    "chunk.",
    "compression.",
    "custom.",
    "encryption.",
    "endpoint.",
    "key.",
    "segment.",
    "storage.",
)
"""Prefixes of the names of the properties that every reader or writer of the bucket needs. All other properties set the
broker's caches, threads and limits.
"""

_PATHS: Final = (".root", ".path", ".file")
_MAX_FILE_BYTES: Final = 1 << 20
_MS: Final = timedelta(milliseconds=1)
_USUAL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}(\.[A-Za-z0-9_-]{1,32})*")
_SHOWN_OF_STRAY: Final = 8
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"


def read_properties(path: Path | str) -> dict[str, str]:
    """Parse a file in Java's full syntax; return its properties in file order, with the last value of a repeated name.

    The file is ISO-8859-1 with ``\\uXXXX`` escapes, as the broker reads them. Raise ConfigError if the file cannot be
    read, is over 1 MiB, or has a malformed escape.
    """
    import javaproperties  # noqa: PLC0415  imports an HTTP client; needed only for files

    raw = _read(Path(path))
    properties: dict[str, str] = {}

    def keep(pairs: Iterator[tuple[str, str]]) -> None:
        for name, text in pairs:
            properties.pop(name, None)  # Move a repeated name to the position of its last value, the one that counts.
            properties[name] = text

    try:
        javaproperties.loads(join_lines(raw.decode("latin-1")), object_pairs_hook=keep)
    except javaproperties.InvalidUEscapeError:
        where = f"after {shown_name(next(reversed(properties)))}" if properties else "before the first property"
        raise ConfigError(f"{path}: a \\u {where} is not followed by four hexadecimal digits") from None
    return properties


def join_lines(text: str) -> str:
    """Join each logical line into one line, because the parser library takes quadratic time for continuation lines."""
    joined: list[str] = []
    parts: list[str] = []
    for line in _LINE_END.split(text):
        natural = line.lstrip(_BLANKS) if parts else line
        is_comment = not parts and natural.lstrip(_BLANKS)[:1] in {"#", "!"}
        if not is_comment and (len(natural) - len(natural.rstrip("\\"))) % 2:
            parts.append(natural[:-1])
        elif parts:
            whole = "".join([*parts, natural]).lstrip(_BLANKS)
            # Escape the first character, so that the joined line does not become a comment. A continuation line that
            # begins with "#" or "!" is no comment.
            joined.append(f"\\{whole}" if whole[:1] in {"#", "!"} else whole)
            parts = []
        else:
            joined.append(line)
    return "\n".join([*joined, "".join(parts)])


def texts_of(given: GivenProperties, source: str) -> dict[str, str]:
    """Return the properties as texts, as a file would have them. Raise ConfigError, without the value, for a property
    that no file can contain.
    """
    return {_check_name(name, source): _text_of(name, value, source) for name, value in given.items()}


def _check_name(name: object, source: str) -> str:
    # Check names and values, because callers without a type checker may pass anything. Also, a text may contain half
    # of a surrogate pair.
    if not isinstance(name, str):
        raise ConfigError(f"{source}: a property's name must be a str, not {type(name).__name__}")
    if _SURROGATE.search(name):
        raise ConfigError(f"{source}: {shown_name(name)} holds a \\u escape that is half of a surrogate pair")
    return name


def _text_of(name: str, value: object, source: str) -> str:
    match value:
        case str():
            text = value
        case bool():
            text = str(value).lower()
        case int():
            text = str(int(value))
        case PathLike():
            text = str(fspath(cast("PathLike[str]", value)))
        case timedelta():
            if value % _MS:
                raise ConfigError(f"{source}: {shown_name(name)} is {value}; give whole milliseconds")
            text = str(value // _MS)
        case list() | tuple() if all(isinstance(word, str) and "," not in word for word in cast("list[object]", value)):
            text = ",".join(cast("list[str]", value))
        case _:
            kinds = "a str, int, bool, path, timedelta or list of words without commas"
            raise ConfigError(f"{source}: {shown_name(name)} is of the type {type(value).__name__}; it must be {kinds}")
    if _SURROGATE.search(text):
        raise ConfigError(f"{source}: {shown_name(name)} holds a \\u escape that is half of a surrogate pair")
    return text


def shown_name(name: str) -> str:
    """Return the name for a message. Shorten a text that does not look like a name, because such a text may be a line
    of a key.
    """
    return name if _USUAL_NAME.fullmatch(name) else f"{name[:_SHOWN_OF_STRAY]!r}… ({len(name)} characters)"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # Read one byte more than the limit, because that byte shows whether the file is over the limit.
            raw = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such settings file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name a .properties file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: the settings file cannot be read: {reason}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} is over {_MAX_FILE_BYTES} bytes, so it is not a settings file")
    return raw


@dataclass(frozen=True, slots=True)
class OwnProperties:
    """The properties of this package in one source: names without the prefix, in the source's order.

    ``texts`` are the values as given; ``values`` are trimmed and without quotes. ``prefix`` is the prefix that was
    removed from the names. ``others`` are the remaining properties: they belong to the broker. The repr shows no
    values.
    """

    source: str
    prefix: str
    texts: Properties
    others: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, str]:
        """The texts, trimmed and without quotes."""
        return {name: plain(text) for name, text in self.texts.items()}

    def __repr__(self) -> str:
        return f"OwnProperties({self.source!r}, prefix={self.prefix!r}, names={list(self.texts)})"


def own_properties(mapping: Mapping[str, str], source: str) -> OwnProperties:
    """Select this package's properties: those under the prefix, or all properties if no name has the prefix.

    The prefix is ``rsm.config.`` or the value of ``remote.log.storage.manager.impl.prefix``. Raise ConfigError if
    ``remote.log.storage.manager.impl.prefix`` is set, but no other property has the prefix.
    """
    declared = mapping.get(PREFIX_PROPERTY)
    prefix = DEFAULT_PREFIX if declared is None else plain(declared)
    if not prefix:
        raise ConfigError(f"{source}: {PREFIX_PROPERTY} is empty; the broker's default is {DEFAULT_PREFIX}")
    # If any name has the prefix, drop the names without it. Such names are the broker's own properties; a file has
    # hundreds of them.
    ours = {k.removeprefix(prefix): v for k, v in mapping.items() if k.startswith(prefix) and k != PREFIX_PROPERTY}
    if ours:
        return OwnProperties(source, prefix, ours, tuple(k for k in mapping if not k.startswith(prefix)))
    if declared is not None:
        raise ConfigError(f"{source}: {PREFIX_PROPERTY} is {prefix!r}, but no property starts with it")
    return OwnProperties(source, "", dict(mapping))


def bucket_properties(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the bucket's settings in a broker's file, without the plugin's prefix, and the names of the file's other
    settings.

    Relative paths become absolute. Raise ConfigError if the file has no settings of a store.
    """
    own = own_properties(read_properties(path), str(path))
    if "storage.backend.class" not in own.texts:
        raise ConfigError(
            f"{path} has no settings of tiered storage: in a broker's file they begin with rsm.config., as in "
            "rsm.config.storage.backend.class"
        )
    taken = {name: text for name, text in own.texts.items() if name.startswith(_OF_THE_BUCKET)}
    for name, text in taken.items():
        if name.endswith(_PATHS):
            taken[name] = str(path.absolute().parent / plain(text))
    left = [name for name in own.texts if name not in taken] if own.prefix else []
    return taken, left


class Effect(enum.Enum):
    """The effect of a property in this package. The value is the reference's word for this effect."""

    IN_EFFECT = "in effect"
    WITHOUT_EFFECT = "accepted without effect"
    REFUSED = "refused"


WITHOUT_EFFECT: Final = (
    "metrics.*",
    "iceberg.*",
    "structure.provider.*",
    "storage.overwrite.enabled",
    "fetch.indexes.cache.thread.pool.size",
    "fetch.chunk.cache.thread.pool.size",
)
"""Names, or prefixes ending in ``*``, of properties that are accepted without effect."""

REFUSED: Final = ("storage.aws.credentials.provider.class",)
"""Refused properties. If this package ignored the Java class, it would silently use other credentials."""


def effect_of(name: str) -> Effect:
    """Return the effect of the property ``name`` (without prefix)."""
    if name in REFUSED:
        return Effect.REFUSED
    # A star stands for any ending, because the plugin does not fix the names of these properties.
    matching = any(name == row or (row.endswith("*") and name.startswith(row[:-1])) for row in WITHOUT_EFFECT)
    return Effect.WITHOUT_EFFECT if matching else Effect.IN_EFFECT
