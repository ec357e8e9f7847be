"""Make `examples/sample` again: `python -m scripts.sample [FOLDER]`.

The sample is a small bucket of the topic ``orders``, and a broker's log directory that begins with the bucket's last
segment. The examples of `docs` run in a copy of it. Each run of this script gives the same records and segment ids.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tieredstore.config import load_settings
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch, write_segment

SAMPLE: Final = Path(__file__).resolve().parent.parent / "examples" / "sample"
SETTINGS: Final = """\
# The names are those of Aiven's plugin: a broker's server.properties works as well.
storage.backend.class=filesystem
storage.root=bucket
compression.enabled=true
"""

_TOPIC_ID: Final = Uuid(b"orders".ljust(16, b"."))
_DAY_MS: Final = 86_400_000
_FIRST_MS: Final = 1_767_225_600_000  # 2026-01-01
_PARTITIONS: Final = 2
_DAYS: Final = 6  # one segment per day; the broker still writes to the last segment
_STORED_DAYS: Final = 3
_FIRST_DAY_ON_DISK: Final = 2
_RECORDS_A_DAY: Final = 120
_BATCH: Final = 10
_CUSTOMERS: Final = ("ada", "boris", "chen", "dana", "emil", "farah", "goran", "hana")
_COUNTRIES: Final = ("DE", "FI", "JP", "KE", "NO", "PE")


def main(folder: Path) -> None:
    """Write settings, log directory and bucket into a folder."""
    (folder / "bucket").mkdir(parents=True)
    (folder / "store.properties").write_text(SETTINGS)
    logs = folder / "kafka-logs"
    with RemoteStorageManager(load_settings(folder / "store.properties")) as manager:
        for partition in range(_PARTITIONS):
            for day in range(_DAYS):
                segment = _write_day(logs, partition, day)
                if day < _STORED_DAYS:
                    ident = Uuid(b"%d-%d" % (partition, day) + bytes(13))
                    manager.copy_log_segment_data(segment.to_metadata(ident, broker_id=1), segment.files)
                if day < _FIRST_DAY_ON_DISK:
                    _delete(logs, partition, day)
            (logs / f"orders-{partition}" / f"{_DAYS * _RECORDS_A_DAY:020d}.snapshot").unlink()
    (logs / "meta.properties").write_text("version=1\nbroker.id=1\n")


def _write_day(logs: Path, partition: int, day: int) -> LogSegment:
    source = random.Random(partition * 100 + day)
    records = list(_orders(source, partition, day))
    first = day * _RECORDS_A_DAY
    batches = (build_batch(records[at : at + _BATCH], first + at) for at in range(0, _RECORDS_A_DAY, _BATCH))
    return write_segment(logs, batches, partition=TopicIdPartition(_TOPIC_ID, "orders", partition), base_offset=first)


def _orders(source: random.Random, partition: int, day: int) -> Iterator[Record]:
    for number in range(_RECORDS_A_DAY):
        order = {
            "order": (day * _RECORDS_A_DAY + number) * _PARTITIONS + partition,
            "customer": source.choice(_CUSTOMERS),
            "country": source.choice(_COUNTRIES),
            "amount": round(source.expovariate(1 / 60), 2),
        }
        time_ms = _FIRST_MS + day * _DAY_MS + number * (_DAY_MS // _RECORDS_A_DAY)
        yield Record(json.dumps(order).encode(), str(order["customer"]).encode(), time_ms)


def _delete(logs: Path, partition: int, day: int) -> None:
    """Delete a segment from the disk, as retention does."""
    for file in (logs / f"orders-{partition}").glob(f"{day * _RECORDS_A_DAY:020d}.*"):
        file.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else SAMPLE)
