"""The table of all kinds of wrong answers."""

from __future__ import annotations

from typing import Final

from tests.support.faulty_server.answer_ways import ANSWER_WAYS
from tests.support.faulty_server.azure_ways import AZURE_WAYS
from tests.support.faulty_server.connection_ways import CONNECTION_WAYS
from tests.support.faulty_server.drip_ways import DRIP_WAYS, PAGE_WAYS
from tests.support.faulty_server.gcs_ways import GCS_WAYS
from tests.support.faulty_server.s3_ways import S3_WAYS
from tests.support.faulty_server.way import Way

QUICK_WAYS: Final[tuple[Way, ...]] = (*CONNECTION_WAYS, *ANSWER_WAYS, *S3_WAYS, *GCS_WAYS, *AZURE_WAYS)
"""Wrong answers without delay."""
SLOW_WAYS: Final[tuple[Way, ...]] = (*DRIP_WAYS, *PAGE_WAYS)
"""Endless answers, for calls with a short timeout."""
WAYS: Final = (*QUICK_WAYS, *SLOW_WAYS)
"""All kinds of wrong answers, with unique names."""
