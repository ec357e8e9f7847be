"""What tests of stores need, shipped for users' own stores as well.

``object_store_tests`` holds the behaviours that every store shows, as a class of pytest tests (it needs the extra
``test``); ``delegating``, ``doubles`` and ``faults`` hold stores that wrap another one to count, delay or fail.
"""

from __future__ import annotations

import sys

if "pytest" in sys.modules:
    # The asserts of the shipped tests explain themselves as those of a test file do.
    import pytest

    for _name in ("access", "reads", "writes", "listings", "races", "abandoned"):
        pytest.register_assert_rewrite(f"tieredstore.testing.store_{_name}")
