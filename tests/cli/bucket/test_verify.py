"""The command ``verify``: lines for a person, JSON for scripts, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.cli.cli_process import Result, tieredstore, write_settings
from tests.support.damage import hostile_folders, hostile_manifests, hostile_objects
from tests.support.damage.hostile_buckets import Case, make_bucket
from tests.support.damage.planted_bucket import CHUNK, EVENTS, OFFSETS, SEGMENTS, PlantedBucket
from tests.support.damage.planted_faults import fault_named
from tests.support.kafka.kafka_topics import make_topic
from tests.support.records.metadata_records import segment_record, update_record
from tests.support.servers.kafka import KafkaServer
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.catalog.metadata_topic import SegmentState, SegmentUpdate
from tieredstore.format.keys import Suffix
from tieredstore.model import human_bytes
from tieredstore.ops.brokers import METADATA_TOPIC
from tieredstore.ops.verification.selection import Level

SAMPLED = 2
"""Number of planted segments in a sample of 40%."""


@pytest.fixture
def planted(tmp_path: Path) -> PlantedBucket:
    """Return an undamaged bucket, and write settings that name its folder."""
    write_settings(tmp_path, chunk_size=CHUNK)
    return PlantedBucket.of("plain", FilesystemObjectStore(tmp_path / "store"))


def verified(folder: Path, *options: str) -> Result:
    return tieredstore("verify", "-c", folder / "store.properties", *options)


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("level", Level)
def test_a_clean_bucket_ends_with_0(tmp_path: Path, level: Level) -> None:
    done = verified(tmp_path, "--level", level.value)
    assert (done.code, done.stderr) == (0, "")
    count = SEGMENTS + 1
    size = human_bytes(sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.log")))
    read = {
        Level.LISTING: f"manifests of {count} of {count} segments read, but no log ({size})",
        Level.INDEX: f"indexes of {count} of {count} segments read, but no log in full ({size})",
        Level.DATA: f"{count} of {count} segments read in full ({size.split()[0]} of {size})",
    }
    assert done.text == f"{read[level]}: no problems found\n"


@pytest.mark.parametrize(
    ("name", "code"), [("bit of a record", 4), ("log is gone", 4), ("segment is gone", 3), ("segments overlap", 0)]
)
def test_the_worst_finding_decides_the_exit_code(tmp_path: Path, planted: PlantedBucket, name: str, code: int) -> None:
    fault = fault_named(name)
    fault.plant(planted)
    assert verified(tmp_path, "--level", fault.level.value).code == code
    assert verified(tmp_path, "other").code == 0
    assert verified(tmp_path, "events", "--level", fault.level.value, "-p", "0").code == code
    if name == "log is gone":
        shown = verified(tmp_path, "--level", "data").text
        assert f"{SEGMENTS} of {SEGMENTS + 1} segments read in full (" in shown


def test_a_finding_names_object_and_bytes_and_what_it_means_and_asks_for(
    tmp_path: Path, planted: PlantedBucket
) -> None:
    header = planted.headers()[5]
    fault_named("bit of a record").plant(planted)
    shown = verified(tmp_path, "--level", "data").text.splitlines()
    bytes_of = f"bytes {header.position}:{header.position + header.size_in_bytes}"
    assert shown[0].startswith(f"damage: batch-crc: {planted.key(Suffix.LOG)} {bytes_of}: ")
    assert any("readers fail there" in line for line in shown)
    assert any("do: replace the segment from a backup (mirror --repair)" in line for line in shown)


def test_two_notices_are_in_the_plural(tmp_path: Path, planted: PlantedBucket) -> None:
    for number in (1, 3):
        planted.delete(Suffix.MANIFEST, number=number)
    assert ": 1 gap, 2 notices\n" in verified(tmp_path).text


def test_json_is_a_line_for_each_finding_and_a_summary(tmp_path: Path, planted: PlantedBucket) -> None:
    fault_named("log is gone").plant(planted)
    fault_named("bit of a timestamp").plant(PlantedBucket(planted.settings, planted.store, planted.segments[1:]))
    rows, summary = verified(tmp_path, "--level", "data", "--json").rows
    assert [(row["severity"], row["kind"], row["base_offset"]) for row in rows] == [
        ("damage", "log-missing", 32),
        ("damage", "batch-crc", 64),
    ]
    assert rows[1]["topic_id"] == str(EVENTS.topic_id)
    assert rows[1]["stop_byte"] > rows[1]["first_byte"] > 0
    assert (rows[1]["first_offset"], rows[1]["last_offset"]) == (73, 75)
    assert (summary["segments"], summary["damage"], summary["gap"], summary["level"]) == (SEGMENTS + 1, 2, 0, "data")


def test_a_bucket_without_segments_is_no_clean_one(tmp_path: Path) -> None:
    done = tieredstore("verify", "-c", write_settings(tmp_path))
    assert (done.code, "nothing was verified" in done.stderr) == (3, True)


@pytest.mark.usefixtures("planted")
def test_a_state_is_kept_and_used(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    first, again = (verified(tmp_path, "--level", "data", "--state", state, "--json").rows[1] for _ in range(2))
    assert (first["passed_over"], again["passed_over"]) == (0, SEGMENTS + 1)
    assert first["log_size"] == again["log_size"] == first["log_read"] > again["log_read"] == 0
    assert (first["segments_read"], again["segments_read"]) == (SEGMENTS + 1, 0)


@pytest.mark.usefixtures("planted")
def test_a_window_narrows_what_is_verified(tmp_path: Path) -> None:
    def segments(*options: object) -> int:
        done = tieredstore("verify", "events", "-c", tmp_path / "store.properties", "--json", *options)
        assert done.code == 0, done
        count: int = done.rows[1]["segments"]
        return count

    assert segments() == SEGMENTS
    assert segments("--from", OFFSETS) == SEGMENTS - 1
    assert segments("--from", OFFSETS - 1, "--to", 2 * OFFSETS) == 2
    assert segments("--to", OFFSETS) == 1
    verified(tmp_path, "events", "--from", "2999-01-31").fails(3, "nothing was verified")
    assert verified(tmp_path, "events", "--from", "1999-01-31", "--to", "2999-01-31").code == 0


def test_a_window_without_an_end_shows_a_lost_end_of_the_log(tmp_path: Path, planted: PlantedBucket) -> None:
    planted.edit_metadata(SEGMENTS - 1, endOffset=SEGMENTS * OFFSETS + 2)
    for window in ([], ["--from", OFFSETS], ["--from", "1999-01-31", "--to", "2999-01-31"]):
        shown = tieredstore(
            "verify", "events", "-c", tmp_path / "store.properties", "--level", "index", "--json", *window
        )
        assert (shown.code, [row["kind"] for row in shown.rows[0]]) == (4, ["end-offset"]), window


def test_a_window_may_begin_beyond_the_end_of_one_log(tmp_path: Path, planted: PlantedBucket) -> None:
    for command in ("verify", "du"):
        done = tieredstore(
            command, "events", "other", "--from", OFFSETS + 9, "-c", tmp_path / "store.properties", "--json"
        )
        assert (done.code, done.rows[-1]["segments"]) == (0, SEGMENTS - 1), done


def test_manifests_and_indexes_that_were_not_read_are_not_counted(tmp_path: Path, planted: PlantedBucket) -> None:
    planted.delete(Suffix.MANIFEST, number=0)
    planted.put(Suffix.MANIFEST, b"{", number=1)
    planted.delete(Suffix.INDEXES, number=2)
    for level in Level:
        summary = verified(tmp_path, "--level", level.value, "--json").rows[-1]
        assert (summary["segments"], summary["manifests_read"]) == (SEGMENTS + 1, SEGMENTS - 1), level
        assert summary["indexes_read"] == (0 if level is Level.LISTING else SEGMENTS - 2), level
    said = f"manifests of {SEGMENTS - 1} of {SEGMENTS + 1} segments read, but no log"
    assert said in verified(tmp_path, "--level", "listing").text


@pytest.mark.usefixtures("planted")
def test_segments_that_the_state_records_count_no_manifest(tmp_path: Path) -> None:
    read = [
        verified(tmp_path, "--state", str(tmp_path / "state"), "--json").rows[-1]["manifests_read"] for _ in range(2)
    ]
    assert read == [SEGMENTS + 1, 0]


@pytest.mark.usefixtures("planted")
def test_a_sample_reads_some_indexes(tmp_path: Path) -> None:
    indexed = verified(tmp_path, "--level", "index", "--sample", "40%")
    assert (indexed.code, indexed.text.startswith(f"indexes of {SAMPLED} of 5 segments read, ")) == (0, True)


@pytest.mark.usefixtures("planted")
def test_a_sample_says_what_it_read_and_no_more(tmp_path: Path) -> None:
    sample = ("--level", "data", "--sample", "40%")
    shown = verified(tmp_path, *sample)
    _, summary = verified(tmp_path, *sample, "--json").rows
    total = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.log"))
    assert (summary["segments"], summary["segments_read"], summary["indexes_read"]) == (SEGMENTS + 1, SAMPLED, SAMPLED)
    assert summary["log_size"] == total
    read = human_bytes(summary["log_read"]).split()[0]
    assert shown.text == f"{SAMPLED} of 5 segments read in full ({read} of {human_bytes(total)}): no problems found\n"


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("verify --sample 5%", 2, "a sample applies to the levels index and data"),
        ("verify --level data --sample some", 2, "--sample is 'some'"),
        ("verify --level data --sample 0%", 2, "--sample is '0%'"),
        ("verify --from soon", 2, "--from is 'soon', not an offset or a time"),
        ("verify evnets", 3, "'events'"),
        ("verify --bootstrap-server= --json", 2, "no broker is named"),
        ("rm events --force", 2, "--bootstrap-server HOST:PORT"),
        ("gc --unknown-too", 2, "--bootstrap-server HOST:PORT"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(tmp_path: Path, line: str, code: int, words: str) -> None:
    command, *options = line.split()
    tieredstore(command, "-c", tmp_path / "store.properties", *options).fails(code, words)


HOSTILE = [*hostile_manifests.CASES, *hostile_objects.CASES, *hostile_folders.CASES]
"""`make test` runs every tenth case, and `make soak` runs all."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.soak] if at % 10 else []) for at, case in enumerate(HOSTILE)],
)
def test_a_hostile_bucket_is_reported_and_hides_nothing_of_an_honest_topic(case: Case, tmp_path: Path) -> None:
    bucket = make_bucket(tmp_path, case.mode)
    case.change(bucket)
    done = verified(tmp_path, "--level", "data", "--json")
    rows, summary = done.rows
    assert done.code in (0, 3, 4)
    assert all(row["topic"].startswith("victim") for row in rows)
    assert summary["segments"] >= 1
    assert len(rows) <= 105
    assert "Traceback" not in done.stderr
    assert max(len(row["detail"]) for row in rows or [{"detail": ""}]) < 2_000


def test_the_brokers_metadata_topic_is_compared_in_both_directions(kafka: KafkaServer, tmp_path: Path) -> None:
    """No other test creates the metadata topic under Kafka's own name on the shared broker."""
    make_topic(kafka, name=METADATA_TOPIC)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    planted = PlantedBucket.of("plain", FilesystemObjectStore(write_settings(tmp_path).parent / "store"))
    finished = SegmentState.COPY_SEGMENT_FINISHED
    for metadata in planted.segments:
        producer.produce(METADATA_TOPIC, segment_record(metadata))
        producer.produce(
            METADATA_TOPIC, update_record(SegmentUpdate(metadata.remote_log_segment_id, 1, 5, None, finished))
        )
    assert producer.flush(60) == 0
    options = ("--bootstrap-server", kafka.bootstrap_servers, "--json")
    assert verified(tmp_path, "events", *options).code == 0
    planted.delete(*Suffix, number=3)
    done = verified(tmp_path, *options)
    kinds = [row.get("kind") for row in done.lines]
    assert (done.code, kinds) == (3, ["unknown-to-brokers", "not-in-bucket", None])
    _check_that_tools_ask_them_too(tmp_path / "store.properties", kafka.bootstrap_servers)


def _check_that_tools_ask_them_too(settings: Path, brokers: str) -> None:
    """Check that ``rm`` keeps segments that brokers list, unless forced, and that ``gc`` asks the brokers."""
    asked = ("--bootstrap-server", brokers, "--json")
    done = tieredstore("rm", "-c", settings, "events", *asked, "--yes")
    assert done.code == 6
    assert {row["code"] for row in done.rows[0]} == {"listed"}
    forced = tieredstore("rm", "-c", settings, "events", *asked, "--force")
    assert (forced.code, "the brokers list the segment" in forced.text) == (0, True)
    collected = tieredstore("gc", "-c", settings, *asked)
    rows, _ = collected.rows
    assert (collected.code, {row["kind"] for row in rows}) == (0, {"forgotten"})
    assert {row["code"] for row in rows} == {"young"}
