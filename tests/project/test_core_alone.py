"""Tests of the core that import a wing, and so do not run in `make core`."""

from __future__ import annotations

import pytest

from tests.support.core_alone import tied_tests

TESTS_WITH_WINGS = {
    "tests/backends/filesystem/test_mounts.py",
    "tests/catalog/test_cut_history.py",
    "tests/cli/app/test_effects.py",
    "tests/cli/app/test_json_names.py",
    "tests/cli/app/test_stopped_services.py",
    "tests/cli/records/test_cat_live.py",
    "tests/cli/terminal/test_plots.py",
    "tests/config/test_pinterest.py",
    "tests/config/test_sections.py",
    "tests/live/test_client_log.py",
    "tests/places/test_raw_metadata.py",
    "tests/places/test_raw_readers.py",
    "tests/places/test_raw_with_broker.py",
    "tests/places/test_raw_writing.py",
    "tests/query/test_batch_tables.py",
    "tests/query/test_live.py",
    "tests/reading/test_elections.py",
    "tests/reading/test_left_logs.py",
    "tests/reading/test_log_tail.py",
    "tests/reading/test_window.py",
    "tests/records/test_sweep.py",
    "tests/remote/test_swapped_segments.py",
    "tests/versions/test_doctor_for.py",
    "tests/versions/test_releases.py",
}
"""Tests of the core that import a wing. The list must not grow."""


@pytest.mark.slow
def test_no_other_test_of_the_core_imports_from_a_wing() -> None:
    assert tied_tests() == TESTS_WITH_WINGS
