"""How long, as a person says it: ``90s``, ``30m``, ``24h``, ``7d``; and since when."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tieredstore.errors import ConfigError, quoted

_DURATION: Final = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(option: str, text: str) -> int:
    """The milliseconds of a duration; ConfigError, which names the option, for what is none."""
    duration_ms = _duration_ms(text)
    if duration_ms is None:
        raise ConfigError(f"{option} is {quoted(text)}: give a duration, as 90s, 30m, 24h or 7d")
    return duration_ms


def parse_since_ms(option: str, text: str, now_ms: int) -> int:
    """The moment in ms since 1970 that lies a duration before now, or that a date names; without a zone it is UTC."""
    duration_ms = _duration_ms(text)
    if duration_ms is not None:
        return now_ms - duration_ms
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{option} is {quoted(text)}: give a duration, as 90s, 30m, 24h or 7d, or a time, as 2026-01-31T06:00"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration_ms(text: str) -> int | None:
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _UNIT_MS[match[2]]
