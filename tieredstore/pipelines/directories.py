"""Where records go below their topic: the names of directories by offset, by time and by field, as Hive reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from tieredstore.errors import ConfigError

_MINUTE_MS: Final = 60_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_10000_MS: Final = 253_402_300_800_000
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^\ufffe\uffff\ud800-\udfff]")
_LONGEST: Final = 200
_PATTERN: Final = re.compile(r"y+|M+|d+|H+|m+|s+|'[^']*'|[A-Za-z]+|[^A-Za-z']+")
_CODES: Final = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


@dataclass(frozen=True, slots=True)
class TimeDirectories:
    """Days, hours and minutes of a zone as parts of a path. Frozen, and travels to workers."""

    zone: str = "UTC"
    hours: bool = False
    minutes: bool = False
    prefixes: tuple[str, str, str] = ("dt=", "hr=", "min=")
    formats: tuple[str, str, str] = ("%Y-%m-%d", "%H", "%M")

    def of_minute(self, minute: int) -> str:
        """The path of the minute since the epoch."""
        moment = (_EPOCH + timedelta(minutes=minute)).astimezone(ZoneInfo(self.zone))
        depth = 3 if self.minutes else 2 if self.hours else 1
        parts = zip(self.prefixes[:depth], self.formats[:depth], strict=True)
        return "/".join(prefix + escaped(moment.strftime(how)) for prefix, how in parts)


def minute_of(timestamp_ms: int) -> int | None:
    """The minute of a time; None for one that no path should have: none at all, or beyond the year 9999."""
    return timestamp_ms // _MINUTE_MS if 0 < timestamp_ms < _YEAR_10000_MS - 86_400_000 else None


def escaped(part: str) -> str:
    """A text as one part of a path, by Hive's rules: what a path or a partition means otherwise is ``%XX``.

    So no message chooses a separator, nor ``.`` and ``..``. ValueError for an empty text, and for one that is too long.
    """
    if not part:
        raise ValueError("it is empty")
    if part.strip(".") == "":
        return part.replace(".", "%2E")
    whole = _ESCAPED.sub(_hexadecimal, part)
    if len(whole.encode("utf-8", "replace")) > _LONGEST:
        raise ValueError(f"it has more than {_LONGEST} bytes as a part of a path")
    return whole


def _hexadecimal(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def java_format(pattern: str, name: str) -> str:
    """A pattern of Java's ``SimpleDateFormat`` as one of ``strftime``; ConfigError for letters that mean more."""
    pieces: list[str] = []
    for piece in _PATTERN.findall(pattern):
        if piece in _CODES:
            pieces.append(_CODES[piece])
        elif piece.startswith("'"):
            pieces.append((piece[1:-1] or "'").replace("%", "%%"))
        elif piece[0].isalpha():
            raise ConfigError(f"{name} has {piece!r}, which is not one of {', '.join(_CODES)}: give a pattern of these")
        else:
            pieces.append(piece.replace("%", "%%"))
    return "".join(pieces)
