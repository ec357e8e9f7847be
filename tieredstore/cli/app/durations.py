"""How long, as a person says it: ``90s``, ``30m``, ``24h``, ``7d``."""

from __future__ import annotations

import re
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


def _duration_ms(text: str) -> int | None:
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _UNIT_MS[match[2]]
