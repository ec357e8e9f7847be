"""The behaviours that every object store shows, as tests to run against one's own."""

from __future__ import annotations

from tieredstore.testing.store_abandoned import AbandonedTests
from tieredstore.testing.store_listings import ListTests
from tieredstore.testing.store_prepared import PreparedTests
from tieredstore.testing.store_races import RaceTests
from tieredstore.testing.store_reads import ReadTests
from tieredstore.testing.store_writes import WriteTests


class ObjectStoreTests(ReadTests, WriteTests, ListTests, RaceTests, AbandonedTests, PreparedTests):
    """Subclass it in a test file, and define what makes an empty store::

        class TestMyStore(ObjectStoreTests):
            @pytest.fixture
            def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
                store = MyStore(tmp_path)
                yield store
                store.close()

    ``raw_put`` and ``raw_get`` may be overridden to reach the objects by other means than the code under test: faster,
    and independent of it. ``picklable``, ``largest_object``, ``listed_objects``, ``race_rounds`` and
    ``racing_publishers`` are class attributes to set where the store asks for it.
    """
