"""The limits of Java's integers, and so of the numbers in Kafka and in the stored format."""

from __future__ import annotations

from typing import Final

MAX_INT16: Final = 2**15 - 1
"""The largest Java ``short``. It limits ports, and lengths of texts, in MemQ's packets."""

MAX_INT32: Final = 2**31 - 1
"""The largest Java ``int``. It limits partition numbers, leader epochs, broker ids, and positions and sizes in the
stored format.
"""

MAX_INT64: Final = 2**63 - 1
"""The largest Java ``long``. It limits timestamps and producer ids."""

MAX_OFFSET: Final = MAX_INT64
"""The greatest offset of a record."""
