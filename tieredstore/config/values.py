"""Types of property values, as in Kafka's ``ConfigDef``, with the range that each property allows.

A :class:`Kind` in the annotation of a pydantic field parses the text. The kind also describes the allowed values, and
decides if messages may show the text. Errors and the reference use the same description.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import AnyStr, Final, cast
from urllib.parse import urlsplit

from pydantic import GetCoreSchemaHandler, SecretStr, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from tieredstore.errors import redact
from tieredstore.limits import MAX_INT32, MAX_INT64

_JAVA_BLANK: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's ``String.trim`` removes; ``ConfigDef`` trims the text of every type."""

_MAX_SHOWN: Final = 80


def is_quoted(text: str) -> bool:
    """Return True if ``text``, already trimmed, is in double quotes."""
    trimmed = text.strip(_JAVA_BLANK)
    return len(trimmed) > 1 and trimmed.startswith('"') and trimmed.endswith('"')


def plain(text: str) -> str:
    """Trim ``text`` as ``ConfigDef`` does, and remove one pair of double quotes around it."""
    trimmed = text.strip(_JAVA_BLANK)
    return trimmed[1:-1] if is_quoted(trimmed) else trimmed


def host_and_port(text: str, most: int = (1 << 16) - 1) -> tuple[str, int]:
    """Parse ``host:port``; raise ValueError for any other form, or a port over ``most``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > most:
        raise ValueError
    return host.strip("[]"), int(port)


def compile_pattern(pattern: AnyStr) -> re.Pattern[AnyStr]:
    """Compile a user's pattern; raise ValueError if it is invalid, or has another meaning in Java.

    In Java, ``[a-z&&[^q]]`` intersects and nests character classes; Python reads these characters literally.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(pattern)
    except FutureWarning:
        raise ValueError("nests character classes, which Python does not support: write them out") from None
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Kind:
    """Type of a property.

    ``type`` and ``valid`` describe the accepted texts in the reference and in errors. ``parse`` raises ValueError, with
    a reason if ``valid`` does not explain the fault. ``hides`` returns True for texts that must never be shown.
    """

    type: str
    valid: str
    parse: Callable[[str], object]
    hides: Callable[[str], bool] = lambda _: False

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return f"{self.type}: {self.valid}" if self.valid else self.type

    def show(self, text: str) -> str:
        """Return ``text`` for a message: quoted, shortened, and without credentials of a URL. A secret is left out."""
        if self.hides(text):
            return "a value that is not shown"
        shown = redact(text)
        return repr(shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…")

    def read(self, text: str, info: ValidationInfo) -> object:
        """Parse ``text``; relative paths start from the ``base_dir`` of the context."""
        # Without a context there is no settings file, so relative paths stay relative.
        value = self.parse(text)
        base_dir: Path = info.context["base_dir"] if info.context else Path()
        if isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            return tuple(base_dir / item if isinstance(item, Path) else item for item in items)
        return base_dir / value if isinstance(value, Path) else value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self.read)


def integer(low: int, high: int = MAX_INT32) -> Kind:
    """Return the kind of Java's ``int``, in ``low..high`` (inclusive)."""
    return _whole_number("int", low, high, MAX_INT32)


def long(low: int) -> Kind:
    """Return the kind of Java's ``long`` that is at least ``low``."""
    return _whole_number("long", low, MAX_INT64, MAX_INT64)


def _whole_number(java_type: str, low: int, high: int, java_max: int) -> Kind:
    def parse(text: str) -> int:
        # 20 digits are enough for every long. ``int()`` alone would also accept underscores and digits of other
        # scripts.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", trimmed := text.strip(_JAVA_BLANK)):
            raise ValueError
        number = int(trimmed)
        if not low <= number <= high:
            raise ValueError
        return number

    return Kind(java_type, f"{low} or more" if high == java_max else f"{low}..{high}", parse)


def multiple(of: int) -> Kind:
    """Return the kind for values that are positive multiples of ``of``, within Java's ``int``."""
    whole = integer(of)

    def parse(text: str) -> object:
        number = whole.parse(text)
        if not isinstance(number, int) or number % of:
            raise ValueError
        return number

    return Kind("int", f"{of} or a multiple of it", parse)


def choice(*allowed: str) -> Kind:
    """Return the kind of one of the ``allowed`` words. Case matters."""

    def parse(text: str) -> str:
        # Compare the words exactly, because the plugin does: a settings file must mean the same in both programs.
        if text not in allowed:
            raise ValueError
        return text

    return Kind("string", "one of " + ", ".join(allowed), parse)


def choices(*allowed: str) -> Kind:
    """Return the kind of a list of ``allowed`` words. Case matters; repeated words count once."""
    return words("any of " + ", ".join(allowed) + ", separated by commas", choice(*allowed).parse)


def words(valid: str, check: Callable[[str], object]) -> Kind:
    """Return the kind of a comma-separated list of words that ``check`` accepts; repeated words count once."""

    def parse(text: str) -> tuple[str, ...]:
        split = _split(text)
        for word in split:
            check(word)
        return split

    return Kind("list", valid, parse)


def _split(text: str) -> tuple[str, ...]:
    """Split at commas as ``ConfigDef`` does: an empty text is an empty list, but an empty word is kept."""
    if not text.strip(_JAVA_BLANK):
        return ()
    # Drop repeated words, but keep the order of the words.
    return tuple(dict.fromkeys(word.strip(_JAVA_BLANK) for word in text.split(",")))


def string(valid: str = "", parse: Callable[[str], object] = str) -> Kind:
    """Return the kind of a setting whose value may be any text that ``parse`` accepts."""
    return Kind("string", valid, parse)


def java_class(valid: str, parse: Callable[[str], object]) -> Kind:
    """Return the kind of a Java class's name. ``parse`` maps the name to the setting's value."""
    return Kind("class", valid, parse)


def _boolean(text: str) -> bool:
    lowered = text.strip(_JAVA_BLANK).lower()
    if lowered not in {"true", "false"}:
        raise ValueError
    return lowered == "true"


def _some(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _secret(text: str) -> SecretStr:
    return SecretStr(_some(text))


def _path(text: str) -> Path:
    if "\0" in text:
        raise ValueError
    return Path(_some(text))


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        complete = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        complete = False  # drop urlsplit's reason, which quotes the text, perhaps with a password
    if not complete or re.search(r"[@?#\s]", text):
        raise ValueError
    return text


BOOLEAN: Final = Kind("bool", "true or false", _boolean)
NAME: Final = Kind("string", "not empty", _some)
SECRET: Final = Kind("password", "not empty", _secret, hides=lambda _: True)
PATH: Final = Kind("path", "not empty", _path)
FOLDERS: Final = Kind("list", "folders, separated by commas", lambda text: tuple(map(_path, _split(text))))
URL: Final = Kind(
    "string",
    "an http:// or https:// URL without user, query or fragment",
    _url,
    hides=lambda text: "@" in text or "?" in text,  # the text may contain a password, or the signature of a SAS URL
)
