"""Forecast of the restored segments that a broker's retention will delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span

_UNLIMITED: Final = -1


def select_deleted(spans: Sequence[Span], settings: Mapping[str, str], now_ms: int) -> Sequence[Span]:
    """Return the segments that a broker would delete by the retention settings of a topic. These are the oldest
    segments, before the first segment that the broker would keep. A segment without a time is as old as its new file.

    Raise ConfigError for a setting that is not a number.
    """
    if "delete" not in settings["cleanup.policy"]:
        return ()
    retention_ms, most_bytes = number_of(settings, "retention.ms"), number_of(settings, "retention.bytes")
    left = sum(span.segment.segment_size_in_bytes for span in spans)
    for count, span in enumerate(spans):
        is_old = retention_ms != _UNLIMITED and 0 <= span.segment.max_timestamp_ms < now_ms - retention_ms
        left -= span.segment.segment_size_in_bytes
        if not is_old and (most_bytes == _UNLIMITED or left < most_bytes):
            return spans[:count]
    return spans


def number_of(settings: Mapping[str, str], name: str) -> int:
    """Return a setting as a number. Raise ConfigError if the setting is not a number."""
    try:
        return int(settings[name])
    except ValueError:
        raise ConfigError(f"{name}={settings[name]} is not a number") from None
