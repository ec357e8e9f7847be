"""The limits of Java's integers, which also limit the numbers in Kafka and in the stored format."""

from __future__ import annotations

from typing import Final

MAX_INT32: Final = 2**31 - 1
"""Java's ``int``: positions and sizes of the stored format, partitions, leader epochs, broker ids."""

MAX_INT64: Final = 2**63 - 1
"""Java's ``long``: timestamps and producer ids."""

MAX_OFFSET: Final = MAX_INT64
"""The greatest offset of a record."""
