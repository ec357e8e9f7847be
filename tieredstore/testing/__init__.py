"""What tests of stores need, shipped for users' own stores as well.

``object_store_tests`` holds the behaviours that every store shows, as a class of pytest tests (it needs the extra
``test``); ``delegating``, ``doubles`` and ``faults`` hold stores that wrap another one to count, delay or fail.
"""

from __future__ import annotations

import sys

if "pytest" in sys.modules:
    # The asserts of the shipped tests explain themselves as those of a test file do.
    import pytest

    pytest.register_assert_rewrite(
        "tieredstore.testing.object_store_reads",
        "tieredstore.testing.object_store_writes",
        "tieredstore.testing.object_store_tests",
        "tieredstore.testing.notification_queue_tests",
        "tieredstore.testing.output_format_tests",
    )
