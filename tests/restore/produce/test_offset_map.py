"""Offset maps: answers equal to those of brute force, size, damaged maps, and runs that contradict each other."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import zstandard

from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    ConfigError,
    CorruptDataError,
    NewerVersionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    ResourceNotFoundError,
)
from tieredstore.restore.produce.offset_map import (
    FirstUnread,
    OffsetMap,
    OffsetMapFile,
    Translation,
    Where,
    list_runs,
    load_map,
)
from tieredstore.restore.produce.runs import SPARSE_RECORDS, OffsetRun

WHERE = ("orders", 3)
KEY = "t/!tieredstore/restores/r1/offsets"


def run(start: int, target: int, length: int) -> OffsetRun:
    return OffsetRun(*WHERE, start, 3, target, length)


def map_of(*runs: OffsetRun, start: int = 0, end: int | None = None, target_start: int = 0) -> OffsetMap:
    made = OffsetMap("r1")
    made.add_topic("orders", "orders.new")
    made.begin(WHERE, start, target_start=target_start)
    made.extend(runs)
    if end is not None:
        made.advance(WHERE, end)
    return made


def reread(offsets: OffsetMap) -> OffsetMap:
    return OffsetMap.parse(offsets.to_bytes(), "it")


def made_records(source: random.Random, start: int, target: int) -> Iterator[tuple[int, int]]:
    """Yield (source offset, target offset) of records in transactions; compaction and markers leave gaps in them."""
    offset = start
    for _ in range(300):
        for _ in range(source.randint(1, 40)):
            offset += source.choice([0] * 30 + [1, 2, 50])
            yield offset, target
            offset, target = offset + 1, target + 1
        target += source.choice([1, 1, 1, 2])  # an end marker, and sometimes that of an aborted attempt


@pytest.mark.slow
def test_ten_thousand_offsets_are_as_by_brute_force() -> None:
    source = random.Random(48)
    for _ in range(10):
        start, target_start = source.randrange(1000), source.randrange(3) * 700
        first = start + source.randrange(3)
        records = list(made_records(source, first, target_start))
        end = records[-1][0] + 1 + source.randrange(3)
        at = source.randrange(len(records))
        runs = [run(*offsets, 1) for offsets in records]
        made = map_of(*runs[:at], start=start, end=end, target_start=target_start)
        made.extend(runs[at:])
        offsets = reread(made)
        assert offsets.to_bytes() == made.to_bytes()
        by_source = dict(records)
        for _ in range(1000):
            asked = source.randrange(max(0, start - 20), end + 20)
            target = next((target for offset, target in records if offset >= asked), records[-1][1] + 1)
            where: Where = "at" if asked in by_source or asked == end else "gap"
            difference = 0
            if asked < start:
                where, difference = "before", start - asked
            elif asked > end:
                where, difference = "beyond", asked - end
            assert offsets.translate(WHERE, asked) == Translation("orders.new", 3, target, where, difference)


def test_a_partition_without_records_has_one_offset() -> None:
    made = OffsetMap("r1")
    made.add_topic("orders", "orders")
    made.begin(WHERE, 70, target_start=5)
    made.advance(WHERE, 90)
    found = [made.translate(WHERE, offset) for offset in (69, 70, 89, 90, 91)]
    assert [(each.partition, each.offset) for each in found] == [(3, 5)] * 5
    assert [(each.where, each.difference) for each in found] == [
        ("before", 1), ("gap", 0), ("gap", 0), ("at", 0), ("beyond", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "most", [pytest.param(1, id="one record a transaction"), pytest.param(60, id="many", marks=pytest.mark.slow)]
)
def test_first_unread_offsets_never_skip_a_record(most: int) -> None:
    """If every transaction has a single record, the offsets are exact; otherwise they may be earlier."""
    source = random.Random(49)
    for _ in range(30):
        made, records = OffsetMap("r1"), list[tuple[int, int, int, int]]()
        made.add_topic("orders", "orders.new", is_rehashed=True)
        next_source, next_target = [0] * 4, [0] * 3
        for _ in range(source.randint(1, 30)):
            runs: list[OffsetRun] = []
            for _ in range(source.randint(1, most)):
                p, t = source.randrange(4), source.randrange(3)
                runs.append(OffsetRun("orders", p, next_source[p], t, next_target[t], 1))
                records.append((p, next_source[p], t, next_target[t]))
                next_source[p] += source.choice([1, 1, 1, 4])
                next_target[t] += 1
            made.extend(runs)
            made.extend(runs)
            next_target = [end + 1 for end in next_target]
        made = reread(made)
        for _ in range(40):
            group = {p: source.randrange(end + 5) for p, end in enumerate(next_source) if source.random() < 0.9}
            found = made.first_unread("orders", group)
            assert sorted(found) == sorted({t for _, _, t, _ in records})
            for partition, first in found.items():
                here = [(p, offset, target) for p, offset, t, target in records if t == partition]
                unread = [target for p, offset, target in here if offset >= group.get(p, 0)]
                smallest = min(unread, default=here[-1][2] + 1)
                assert first.offset <= smallest
                again = sum(target >= first.offset and offset < group.get(p, 0) for p, offset, target in here)
                assert again <= first.read_again
                if most == 1:
                    assert first == FirstUnread(smallest, again)


@pytest.mark.slow
def test_hashed_keys_need_a_run_for_a_thousand_records() -> None:
    made, count = OffsetMap("r1"), 90_000
    made.add_topic("orders", "orders", is_rehashed=True)
    made.extend(OffsetRun("orders", 0, at, at % 9, at // 9, 1) for at in range(count))
    runs = list(made.mapped_runs(("orders", 0)))
    assert [run.length for run in runs] == [SPARSE_RECORDS] * (count // SPARSE_RECORDS)
    assert list(reread(made).mapped_runs(("orders", 0))) == runs
    made.extend(OffsetRun("orders", 0, at, at % 9, at // 9, 1) for at in range(count))
    assert list(made.mapped_runs(("orders", 0))) == runs


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 6000], ids=["equal", "random"])
def test_a_thousand_million_records_need_a_megabyte_at_most(most: int) -> None:
    """The map has 50 partitions with 1000 transactions each, and about 20,000 records per partition and transaction."""
    source, made, total = random.Random(50), OffsetMap("r1"), 0
    made.add_topic("orders", "orders")
    for partition in range(50):
        offset = target = 0
        for _ in range(1000):
            count = 20_000 + source.randint(-most, most)
            made.extend([OffsetRun("orders", partition, offset, partition, target, count)])
            offset, target, total = offset + count, target + count + 1, total + count
    assert total > 990_000_000
    size = len(made.to_bytes())
    print(f"{size} bytes")
    assert size < (10_000 if not most else 1_000_000)
    assert reread(made).translate(("orders", 7), 10**7) == made.translate(("orders", 7), 10**7)


def test_the_same_runs_again_change_nothing_and_others_are_refused() -> None:
    runs = [run(0, 0, 10), run(10, 11, 5), run(20, 16, 5)]
    made = map_of(*runs)
    before = made.to_bytes()
    made.extend([*runs, run(3, 3, 4)])
    made.begin(WHERE, 7)
    made.advance(WHERE, 6)
    assert made.to_bytes() == before
    assert list(made.mapped_runs(WHERE)) == runs
    assert made.partitions("orders") == {3: range(25)}
    for wrong in (run(5, 6, 3), run(24, 20, 2), run(30, 3, 1), run(9, 9, 2)):
        with pytest.raises(CorruptDataError, match="contradicts the offset map of the run r1"):
            made.extend([wrong])
    for invalid in (run(40, 40, 0), run(-1, 40, 1), run(2**63 - 2, 50, 3)):
        with pytest.raises(CorruptDataError, match="is not valid"):
            made.extend([invalid])
    with pytest.raises(CorruptDataError, match="to partition 4 and to another partition"):
        made.extend([OffsetRun(*WHERE, 40, 4, 40, 1)])


def test_a_map_says_what_it_does_not_have() -> None:
    made = map_of(run(0, 0, 10))
    with pytest.raises(ResourceNotFoundError, match="run r1 did not restore orders-4"):
        made.translate(("orders", 4), 0)
    for source, target in (("orders", "other"), ("returns", "orders.new")):
        with pytest.raises(ConfigError, match=r"the run r1 restores orders to orders\.new"):
            made.add_topic(source, target)
    made.add_topic("orders", "orders.new")
    made.add_topic("keys", "keys", is_rehashed=True)
    made.begin(("keys", 0), 0)
    with pytest.raises(ConfigError, match="hashed the keys of keys again"):
        made.translate(("keys", 0), 0)
    for name in ("", "..", "a/b", "ä", "a" * 151):
        with pytest.raises(ConfigError, match="the run's name"):
            OffsetMap(name)


def test_the_file_grows_and_another_writer_is_noticed() -> None:
    store = MemoryObjectStore()
    with pytest.raises(ObjectNotFoundError):
        load_map(store, "t/", "r1")
    first, second = OffsetMapFile(store, "t/", "r1"), OffsetMapFile(store, "t/", "r1")
    for file in (first, second):
        file.map.add_topic("orders", "orders.new")
        file.map.extend([run(0, 0, 10)])
    first.save()
    with pytest.raises(PreconditionFailedError):
        second.save()
    resumed = OffsetMapFile(store, "t/", "r1")
    resumed.map.extend([run(10, 11, 10)])
    resumed.save()
    resumed.save()
    with pytest.raises(PreconditionFailedError):
        first.save()
    assert list(load_map(store, "t/", "r1").mapped_runs(WHERE)) == [run(0, 0, 10), run(10, 11, 10)]
    assert list_runs(store, "t/") == ["r1"]
    assert [info.key for info in store.list()] == [KEY]


def test_damage_anywhere_is_found() -> None:
    source, whole = random.Random(51), map_of(*(run(at, 2 * at, 3) for at in range(0, 900, 3))).to_bytes()
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[source.randrange(len(whole))] ^= 1 << source.randrange(8)
        try:
            read = OffsetMap.parse(bytes(damaged), "it")
        except (CorruptDataError, NewerVersionError):
            continue
        assert read.to_bytes() == whole, "zstd ignores some bits of its frame"
    for size in range(len(whole)):
        with pytest.raises(CorruptDataError, match="it is not a valid restore offset map"):
            OffsetMap.parse(whole[:size], "it")
    with pytest.raises(CorruptDataError):
        OffsetMap.parse(None, "it")


PAIR = '{"topic":"a","partition":0,"target":0,"runs":%d}'
PARTITION = '{"topic":"a","partition":0,"start":-1,"end":0,"target_start":0}'


@pytest.mark.parametrize(
    ("partitions", "pairs", "fault"),
    [("", PAIR % 9, "9 runs do not have 40 bytes"), ("", PAIR % 1, "'a'"), (PARTITION, "", "start is -1")],
)
def test_hostile_content_is_damage(partitions: str, pairs: str, fault: str) -> None:
    content = f'{{"run":"r1","topics":[],"partitions":[{partitions}],"pairs":[{pairs}]}}\n'.encode() + bytes(40)
    frame = zstandard.ZstdCompressor().compress(content)
    with pytest.raises(CorruptDataError, match=fault):
        OffsetMap.parse(b'{"version":1}\n' + frame, "it")


def test_a_frame_that_claims_too_much_is_not_decompressed() -> None:
    frame = bytes.fromhex("28b52ffdc0") + (1 << 40).to_bytes(8, "little") + bytes(20)
    with pytest.raises(CorruptDataError, match="does not declare a size"):
        OffsetMap.parse(b'{"version":1}\n' + frame, "it")


def test_the_map_of_another_run_is_refused() -> None:
    store = MemoryObjectStore()
    store.put("!tieredstore/restores/r2/offsets", OffsetMap("r1").to_bytes())
    with pytest.raises(CorruptDataError, match="map of another run, r1"):
        load_map(store, "", "r2")
