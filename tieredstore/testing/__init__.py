"""Helpers for tests of your own store, queue, format or parser (with the extra ``test``).

``object_store_tests``, ``notification_queue_tests`` and ``output_format_tests`` contain classes of pytest tests that
every store, queue or format must pass. ``batches`` and ``segments`` make records and segments as a broker writes them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.testing import (  # noqa: TC004  modules, which callers import one by one
        batches,
        notification_queue_tests,
        object_store_tests,
        output_format_tests,
        segments,
    )

__all__ = ["batches", "notification_queue_tests", "object_store_tests", "output_format_tests", "segments"]

if "pytest" in sys.modules:
    # Register these modules, so that pytest shows the values of a failed assertion in them, as in a test file.
    import pytest

    pytest.register_assert_rewrite(
        "tieredstore.testing.object_store_reads",
        "tieredstore.testing.object_store_writes",
        "tieredstore.testing.object_store_tests",
        "tieredstore.testing.notification_queue_tests",
        "tieredstore.testing.output_format_tests",
    )
