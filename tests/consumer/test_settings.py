"""Consumer settings: each name and value is checked before any connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.records.topic_buckets import FIRST_ID
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer, Mode
from tieredstore.consumer.settings import parse_settings
from tieredstore.errors import ConfigError

STORE = {"storage.backend.class": "memory", "chunk.size": "4096"}
BROKER = {"bootstrap.servers": "127.0.0.1:1", "group.id": "readers"}


def given(**own: Any) -> dict[str, Any]:
    return {**BROKER, "tiered.storage.settings": STORE, **{f"tiered.storage.{name}": own[name] for name in own}}


def test_what_holds_if_nothing_is_said() -> None:
    settings = parse_settings(given())
    assert (settings.mode, settings.on_data_loss, settings.refresh_s) == (Mode.KAFKA_PREFERRED, "fail", 30.0)
    assert (settings.queued_bytes, settings.partitions_at_once, settings.timeout_s) == (64 * 2**20, 4, 60.0)
    assert (settings.reset, settings.isolation, settings.auto_commit_s) == ("latest", "read_committed", 5.0)
    assert (settings.auto_store, settings.emits_eof, settings.is_eager) == (True, False, True)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("kafka_only", Mode.KAFKA_ONLY),
        ("remote_preferred", Mode.REMOTE_PREFERRED),
        (Mode.REMOTE_ONLY, Mode.REMOTE_ONLY),
        ("KAFKA_ONLY", Mode.KAFKA_ONLY),
        ("KAFKA_PREFERRED", Mode.KAFKA_PREFERRED),
        ("TIERED_STORAGE_PREFERRED", Mode.REMOTE_PREFERRED),
        ("TIERED_STORAGE_ONLY", Mode.REMOTE_ONLY),
    ],
)
def test_modes_by_our_names_and_by_pinterests(name: object, mode: Mode) -> None:
    assert parse_settings(given(mode=name)).mode is mode


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        (given(mode="both"), "tiered.storage.mode is 'both'; it must be one of kafka_only, kafka_preferred"),
        (given(modes="x"), "unknown property tiered.storage.modes; did you mean tiered.storage.mode?"),
        (BROKER, "no store is named: tiered.storage.mode kafka_preferred needs store="),
        (given(**{"refresh.ms": "soon"}), "tiered.storage.refresh.ms is 'soon': it must be a whole number"),
        (
            given(**{"partitions.at.once": 0}),
            "tiered.storage.partitions.at.once is 0: it must be a whole number from 1",
        ),
        (given(**{"queued.max.kbytes": True}), "tiered.storage.queued.max.kbytes is True"),
        (given(**{"on.data.loss": "skip"}), "tiered.storage.on.data.loss is 'skip'; it must be fail or report"),
        (
            given(**{"topic.ids": f"orders={FIRST_ID}"}),
            "tiered.storage.topic.ids needs tiered.storage.mode remote_only: a broker has only the newest topic",
        ),
        (given(mode="remote_only", **{"topic.ids": "orders"}), "'' is not a Kafka uuid"),
        (given(loss_cb="print"), "tiered.storage.loss_cb must be a function"),
        (given(settings=7), "an object of the type int names no store: give a path, a URL, a mapping of settings"),
        (given(store="ftp://x/y", settings=None), "the URL of a store starts with one of file://"),
        (given() | {"auto.offset.reset": "first"}, "auto.offset.reset is 'first'"),
        (given() | {"enable.auto.commit": "maybe"}, "enable.auto.commit is 'maybe'; it must be true or false"),
        (given() | {"isolation.level": "dirty"}, "isolation.level is 'dirty'"),
        (given() | {"metric.reporters": "a.B"}, "metric.reporters cannot be set: there is no JVM"),
        (
            {"tiered.storage.settings": STORE, "group.id": "x"},
            "bootstrap.servers is not set: tiered.storage.mode",
        ),
    ],
)
def test_what_cannot_be_is_named_before_any_connection(properties: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        Consumer(properties)
    assert sentence in str(error.value)


def test_javas_properties_are_translated() -> None:
    java = {
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "auto.offset.reset": "none",
        "fetch.max.wait.ms": "100",
        "receive.buffer.bytes": "-1",
        "max.poll.records": "250",
        "exclude.internal.topics": "true",
    }
    settings = parse_settings(given() | java)
    assert (settings.is_eager, settings.reset, settings.poll_records) == (False, "error", 250)
    client = settings.member_properties()
    assert client["partition.assignment.strategy"] == "cooperative-sticky"
    assert (client["fetch.wait.max.ms"], client["socket.receive.buffer.bytes"]) == ("100", "0")
    assert not client.keys() & {"max.poll.records", "exclude.internal.topics"}


def test_the_names_of_pinterests_readme_are_taken() -> None:
    theirs = {
        "bootstrap.servers": "b:1",
        "group.id": "test",
        "tiered.storage.mode": "KAFKA_PREFERRED",
        "kafka.cluster.id": "test-cluster",
        "offset.reset.policy": "EARLIEST",
    }
    with pytest.raises(
        ConfigError,
        match=r"provider.class is refused: a Java class cannot tell tieredstore where segments are: also set",
    ):
        parse_settings({**theirs, "storage.service.endpoint.provider.class": "x.Mock"})
    bucket = {"storage.service.endpoint.s3.bucket": "logs", "storage.service.endpoint.s3.prefix": "gold"}
    settings = parse_settings(theirs | bucket)
    assert (settings.mode, settings.reset) == (Mode.KAFKA_PREFERRED, "earliest")
    assert settings.store is not None
    assert settings.store.s3 is not None
    assert (settings.store.s3.bucket_name, settings.store.endpoint.cluster) == ("logs", "test-cluster")
    assert settings.client.keys() == {"bootstrap.servers", "group.id", "auto.offset.reset"}
    # Our own properties for the location of segments take precedence.
    ours = parse_settings(theirs | bucket | {"tiered.storage.settings": STORE})
    assert ours.store is not None
    assert ours.store.s3 is None
    assert parse_settings(theirs | {"offset.reset.policy": "NONE", "tiered.storage.settings": STORE}).reset == "error"


def test_resets_and_commits_are_the_clients_own_with_kafka_only() -> None:
    own = {"auto.offset.reset": "earliest", "enable.auto.commit": True, "auto.commit.interval.ms": 7}
    ours = parse_settings(given() | own).member_properties()
    assert (ours["auto.offset.reset"], ours["enable.auto.commit"]) == ("error", False)
    assert "auto.commit.interval.ms" not in ours
    theirs = parse_settings(given(mode="kafka_only") | own).member_properties()
    assert theirs == BROKER | own


def test_a_store_by_path_url_mapping_and_settings(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    file = tmp_path / "store.properties"
    file.write_text(f"storage.backend.class=filesystem\nstorage.root={tmp_path / 'bucket'}\nchunk.size=4096\n")
    for own in ({"settings": str(file)}, {"settings": file}, {"store": str(tmp_path / "bucket")}):
        store = parse_settings(given() | {f"tiered.storage.{name}": own[name] for name in own} | _without(own)).store
        assert store is not None
        assert store.storage_backend == "filesystem"
    settings = settings_from(STORE)
    assert parse_settings(given(settings=settings)).store is settings


def _without(own: dict[str, Any]) -> dict[str, Any]:
    return {} if "settings" in own else {"tiered.storage.settings": None}


def test_the_repr_of_settings_has_no_secret() -> None:
    settings = parse_settings(given() | {"sasl.password": "hunter2", "sasl.username": "alice"})
    assert "hunter2" not in repr(settings)
