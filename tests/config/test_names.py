"""Names of settings: unknown and old ones, names of stores, names without effect, and the page that lists all."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fresh_python import run_fresh
from tests.support.paths import REPOSITORY
from tests.support.reference.settings_page import all_sections, render_page
from tests.support.settings_texts import AZURE, BASE, GCS, S3, error_of
from tieredstore.config import load_settings, settings_from
from tieredstore.config.fields import property_names, wing_groups
from tieredstore.config.names import core_groups, core_names, known_names
from tieredstore.config.properties import REFUSED, WITHOUT_EFFECT, Effect, effect_of

JAVA = "io.aiven.kafka.tieredstorage.storage."


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("storage.key.prefix", "key.prefix"),
        ("chunk.sise", "chunk.size"),
        ("Chunk.Size", "chunk.size"),
        ("compression.enable", "compression.enabled"),
        ("encryption.key.pair", "encryption.key.pairs"),
        ("storage.s3.bucket", "storage.s3.bucket.name"),
        ("aiven.custom.metadata.fields.include", "custom.metadata.fields.include"),
        ("fetch.index.cache.size", "fetch.indexes.cache.size"),
        ("metrics.recording.levels", "metrics.recording.level"),
        ("storage.class.name", "storage.backend.class"),
        ("storage.type", "storage.backend.class"),
        ("storage.directory", "storage.root"),
        ("zstd.level", "compression.level"),
        ("encryption.aes.enabled", "encryption.enabled"),
        ("fetch.threads", "fetch.parallelism"),
        ("storage.s3.secret.key", "storage.aws.secret.access.key"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest(wrong: str, nearest: str) -> None:
    assert error_of({**BASE, wrong: "value"}) == f"settings: {wrong} is not known; did you mean {nearest}?"
    prefixed = {f"rsm.config.{name}": text for name, text in {**BASE, wrong: "value"}.items()}
    assert error_of(prefixed) == f"settings: rsm.config.{wrong} is not known; did you mean rsm.config.{nearest}?"


def test_a_name_like_no_other_has_no_nearest() -> None:
    assert error_of({**BASE, "zzz": "1"}) == "settings: zzz is not known"


@given(name=st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_unknown_name_passes(name: str) -> None:
    families = ("iceberg.catalog.", "structure.provider.serde.", "rsm.config.")
    if name not in known_names() and not name.startswith(families):
        assert " is " in error_of({**BASE, name: "1"})


@pytest.mark.parametrize("more", [{}, {"metrics.num.samples": "2"}, {f"log.{at}": "1" for at in range(30)}])
def test_a_file_without_any_known_name_gets_one_line(more: dict[str, str]) -> None:
    assert error_of({"broker.id": "1", "node.id": "2", **more}) == (
        "settings has no settings of a store: no name starts with storage. or rsm.config.storage.; "
        "name the file that has them, or write a settings file with tieredstore init"
    )
    assert "storage.backend.clas is not known; did you mean" in error_of({"storage.backend.clas": "s3", **more})


def test_of_many_unknown_names_only_those_that_are_shown_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def nearest(name: str, _: object) -> None:
        compared.append(name)

    monkeypatch.setattr("tieredstore.config.nearest.nearest_name", nearest)
    assert "and 9980 more" in error_of({**BASE, **{f"chunk.size.{i}": "" for i in range(10000)}})
    assert compared == [f"chunk.size.{i}" for i in range(20)]


@pytest.mark.timeout(10)
def test_a_huge_name_is_told_quickly() -> None:
    assert "(400000 characters)" in error_of({**BASE, "a." * 200000: ""})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("chunk.cache.size", "fetch.chunk.cache.size"),
        ("chunk.cache.prefetch.max.size", "fetch.chunk.cache.prefetch.max.size"),
        ("segment.manifest.cache.size", "fetch.manifest.cache.size"),
        ("segment.manifest.cache.retention.ms", "fetch.manifest.cache.retention.ms"),
    ],
)
def test_an_old_name_is_an_error_that_names_todays(old: str, new: str) -> None:
    assert error_of({**BASE, old: "1"}) == f"settings: {old} is an old name; the new name is {new}"


@pytest.mark.parametrize("family", ["structure.provider.serde.schema.registry.url", "iceberg.catalog.uri"])
def test_names_that_are_handed_on_are_known(family: str) -> None:
    settings_from({**BASE, family: "x"})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (f"{JAVA}filesystem.FileSystemStorage", "filesystem"),
        (f" {JAVA}s3.S3Storage ", "s3"),
        (f"{JAVA}gcs.GcsStorage", "gcs"),
        (f"{JAVA}azure.AzureBlobStorage", "azure"),
        *((name, name) for name in (
            "memory", "filesystem", "my_package.stores:MyStore", "my_package.stores.MyStore", "stores:MyStore",
        )),
    ],
)  # fmt: skip
def test_stores_are_named_by_java_class_short_name_or_python_class(given: str, name: str) -> None:
    every = S3 | GCS | AZURE | {"storage.root": "r", "storage.backend.class": given}
    assert settings_from(every).storage_backend == name


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (f"{JAVA}s3.S3Storag", f"the plugin has no such class; did you mean {JAVA}s3.S3Storage"),
        ("io.aiven.Other", "is 'io.aiven.Other'; "),
        ("S3", "it must be a class: filesystem, s3, gcs, azure, memory"),
        *((text, "it must be a class") for text in ("", "a..b", "a.b:", "a:b:c", "a/b.py:C", "1a.B")),
    ],
)
def test_a_wrong_store_is_an_error(wrong: str, sentence: str) -> None:
    error = error_of({**BASE, "storage.backend.class": wrong})
    assert error.startswith("settings: storage.backend.class is ")
    assert sentence in error


def test_a_store_of_the_users_own_gets_every_storage_property() -> None:
    own = {**BASE, "storage.backend.class": "pkg:Store", "storage.shelf": "7", "storage.s3.region": "x"}
    options = dict(settings_from(own).storage_options)
    assert {name: secret.get_secret_value() for name, secret in options.items()} == {"shelf": "7", "s3.region": "x"}
    assert "shelves" in error_of({**own, "shelves": "1"})
    assert settings_from(BASE).storage_options == ()


def test_properties_without_effect_are_accepted_and_reported_once() -> None:
    """Each process reports a name once, so this test has its own process."""
    said = run_fresh(
        """
        import logging, sys
        from tests.support.settings_texts import BASE
        from tieredstore.config import settings_from

        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(message)s")
        quiet = {"storage.overwrite.enabled": "true", "metrics.num.samples": "3", "structure.provider.class": "x.Y"}
        for more in ({}, {}, {"fetch.indexes.cache.thread.pool.size": "5"}):
            settings_from({**BASE, **quiet, **more}, source="f")
        """
    )
    assert said.splitlines() == [
        "INFO f: accepted without effect: storage.overwrite.enabled, metrics.num.samples, structure.provider.class",
        "INFO f: accepted without effect: fetch.indexes.cache.thread.pool.size",
    ]


def test_settings_that_are_all_in_effect_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings_from({**BASE, "compression.enabled": "true", "segment.format": "kafka"})
    # Exclude messages from threads of other tests.
    assert [one.message for one in caplog.records if one.name.startswith("tieredstore.config")] == []


def test_every_row_of_the_effects_names_a_known_property() -> None:
    for row in (*WITHOUT_EFFECT, *REFUSED):
        assert row in core_names() or (row.endswith(".*") and any(name.startswith(row[:-1]) for name in core_names()))
    assert effect_of("storage.aws.credentials.provider.class") is Effect.REFUSED
    assert effect_of("metrics.num.samples") is Effect.WITHOUT_EFFECT
    assert effect_of("chunk.size") is Effect.IN_EFFECT


SERVER = r"""
# A broker with KRaft, as it stands on disk
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/kafka
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
compression.type = producer
metrics.num.samples=2
metrics.recording.level=INFO
ssl.keystore.password=broker-secret
sasl.enabled.mechanisms=PLAIN
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
message.max.bytes=1048588
replica.fetch.max.bytes=1048576
remote.log.storage.system.enable=true
remote.log.manager.task.interval.ms=5000
remote.log.metadata.manager.listener.name=PLAINTEXT
remote.log.metadata.manager.impl.prefix=rlmm.config.
rlmm.config.remote.log.metadata.topic.replication.factor=1
remote.log.storage.manager.class.name=io.aiven.kafka.tieredstorage.RemoteStorageManager
remote.log.storage.manager.class.path=/opt/tiered-storage/*
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.storage.backend.class=io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage
rsm.config.storage.root=remote
rsm.config.storage.overwrite.enabled=true
rsm.config.chunk.size=4194304
rsm.config.key.prefix: tiered/
rsm.config.compression.enabled TRUE
rsm.config.fetch.chunk.cache.class=io.aiven.kafka.tieredstorage.fetch.cache.DiskChunkCache
rsm.config.fetch.chunk.cache.path=/var/cache/kafka
rsm.config.fetch.chunk.cache.size=1073741824
rsm.config.fetch.chunk.cache.prefetch.max.size=33554432
"""


def test_a_brokers_server_properties_works_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "server.properties"
    path.write_text(SERVER)
    settings = load_settings(path)
    assert (settings.storage_backend, settings.storage_root) == ("filesystem", tmp_path / "remote")
    assert (settings.chunk_size, settings.key_prefix, settings.compression_enabled) == (4194304, "tiered/", True)
    assert settings.encryption is None
    cache = settings.fetch.chunk_cache
    assert cache is not None
    assert (cache.kind, cache.size, settings.fetch.read_ahead_bytes) == ("disk", 1073741824, 33554432)
    assert (cache.path, cache.retention_ms) == (Path("/var/cache/kafka"), 600000)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "tests/golden").glob("*/rsm.properties")), ids=lambda p: p.parent.name
)
def test_the_settings_that_the_plugin_ran_with_are_accepted(path: Path) -> None:
    settings = load_settings(path)
    assert settings.chunk_size == 65536
    assert settings.storage_root == path.parent / "store"
    assert (settings.encryption is not None) == ("encryption.enabled=true" in path.read_text())
    assert settings.key_prefix == ("my/pre fix/p-" if "masked" in path.parent.name else "")


def test_the_reference_has_every_property_once_with_its_effect() -> None:
    rows = [line.split(" | ") for line in render_page().splitlines() if line.startswith("`") and " | " in line]
    names = [row[0].removesuffix(" *").strip("`") for row in rows]
    assert set(names) >= known_names()
    assert len(names) == len(set(names))
    assert {name for name, row in zip(names, rows, strict=True) if "*(Refused.)*" in row[-1]} == set(REFUSED)
    silent = {name for name, row in zip(names, rows, strict=True) if "*(No effect.)*" in row[-1]}
    assert {name for name in known_names() if effect_of(name) is Effect.WITHOUT_EFFECT} <= silent
    assert all(row[-1].removesuffix(")*").endswith(".") for row in rows)


def test_every_part_is_in_the_reference_and_no_name_is_read_twice() -> None:
    groups = [*core_groups(), *wing_groups()]
    assert {group for section in all_sections() for group in section.groups} >= set(groups)
    names = [name for group in groups for name in property_names(group)]
    assert len(names) == len(set(names))
