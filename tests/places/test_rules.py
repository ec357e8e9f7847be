"""Rules that send topics to other places, and a user's own class instead of rules."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.records.disk_segments import write_segments
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.base import admin_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import load_catalog
from tieredstore.config import Settings, settings_from
from tieredstore.errors import AccessDeniedError, ConfigError, StoreUnavailableError
from tieredstore.format.keys import main_path
from tieredstore.kafka.logdir import describe
from tieredstore.model import RemoteLogSegmentId, TopicIdPartition, Uuid
from tieredstore.places import Endpoint, EndpointProvider
from tieredstore.places.endpoints import RulesProvider
from tieredstore.places.opening import open_places
from tieredstore.places.routed import Place, RoutedStore
from tieredstore.remote import RemoteStorageManager

_ID = Uuid(bytes([7] * 16))


def rules_settings(folder: Path, **others: str) -> Settings:
    texts = {
        "storage.backend.class": "filesystem",
        "storage.root": str(folder / "all"),
        "chunk.size": "64",
        "key.prefix": "tiered/",
        "endpoint.rules": "pii,logs",
        "endpoint.rules.pii.topics": "pii-.*, customers",
        "endpoint.rules.pii.url": f"file://{folder / 'private'}",
        "endpoint.rules.pii.prefix": "kept apart/",
        "endpoint.rules.logs.topics": "log-.*",
        "endpoint.rules.logs.prefix": "logs/",
    }
    return settings_from({**texts, **{name.replace("_", "."): text for name, text in others.items()}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "all").mkdir()
    (tmp_path / "private").mkdir()
    return tmp_path


def copy_topics(settings: Settings, folder: Path, *topics: str) -> None:
    with RemoteStorageManager(settings) as manager:
        for topic in topics:
            where = TopicIdPartition(_ID, topic, 0)
            segment = describe(write_segments(folder / f"logs of {topic}", 2, where)[0])
            manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), 1, 1000), segment.files)


def test_topics_lie_where_rules_send_them_and_one_catalog_has_them_all(folder: Path) -> None:
    settings = rules_settings(folder)
    copy_topics(settings, folder, "customers", "orders", "pii-1", "log-a")
    assert sorted(path.name[:-23] for path in (folder / "private" / "kept apart").iterdir()) == ["customers", "pii-1"]
    assert [path.name[:-23] for path in (folder / "all" / "tiered").iterdir()] == ["orders"]
    assert [path.name[:-23] for path in (folder / "all" / "logs").iterdir()] == ["log-a"]
    with RemoteStorageManager(settings) as manager:
        assert load_catalog(manager).topics() == ("customers", "log-a", "orders", "pii-1")
        span = load_catalog(manager, topic="customers").lineage("customers", 0).spans[0]
        with manager.open(span.segment) as stream:
            assert len(stream.read()) == span.segment.segment_size_in_bytes
        keys = [info.key for info in manager.store.list("tiered/")]
        assert keys == sorted(keys)
        assert [info.key for info in manager.store.list("tiered/", keys[4])] == keys[5:]
        manager.delete_log_segment_data(span.segment)
    assert [path.name[:5] for path in (folder / "private" / "kept apart").iterdir()] == ["pii-1"]


def test_watermarks_and_quarantine_of_a_topic_lie_with_it(folder: Path) -> None:
    store = open_places(rules_settings(folder))
    keys = [
        f"tiered/!tieredstore/{room}/customers-{_ID}/0{end}"
        for room, end in (("watermarks", ".json"), ("quarantine", "/x.log"))
    ]
    for key in (*keys, "tiered/!tieredstore/holds/a"):
        store.put(key, b"x")
    assert len([path for path in (folder / "private").rglob("*") if path.is_file()]) == 2
    assert [path.name for path in (folder / "all").rglob("*") if path.is_file()] == ["a"]
    assert [info.key for info in store.list("tiered/!tieredstore/watermarks/")] == [keys[0]]
    store.close()


def test_segments_of_before_a_rule_are_named_and_not_read(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy_topics(rules_settings(folder, endpoint_rules_pii_topics="nothing"), folder, "customers")
    store = open_places(rules_settings(folder))
    assert list(store.list("tiered/")) == []
    assert [record.message.count("customers") for record in caplog.records] == [1]


def test_places_are_closed_and_pickled_together(folder: Path) -> None:
    store = open_places(rules_settings(folder))
    again = pickle.loads(pickle.dumps(store))
    again.put(f"tiered/customers-{_ID}/0/{0:020d}-{_ID}.log", b"x")
    assert [info.size for info in store.list("tiered/customers-")] == [1]
    assert "private" in store.identity
    assert "3 places" in str(admin_of(store).lifecycle())
    assert "3 places" in str(admin_of(store).versions())
    assert admin_of(store).now_ms() is not None
    store.close()


class ByLetter(EndpointProvider):
    """Puts topics whose names begin with a to m under ``early/``, and the others in the default place."""

    def endpoint(self, topic: str) -> Endpoint:
        return self.endpoints()[0] if topic < "n" else Endpoint()

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(prefix="early/")]


def test_a_class_says_where_topics_lie(folder: Path) -> None:
    texts = {
        "storage.backend.class": "filesystem", "storage.root": str(folder / "all"), "chunk.size": "64",
        "endpoint.provider.class": f"{__name__}.ByLetter",
    }  # fmt: skip
    copy_topics(settings_from(texts), folder, "apples", "pears")
    assert sorted(path.name[:5] for path in (folder / "all").iterdir()) == ["early", "pears"]


@pytest.mark.parametrize("name", ["nowhere.Class", ".nowhere.Class", "tieredstore.places.Endpoint", "x"])
def test_a_class_that_is_none_is_refused(folder: Path, name: str) -> None:
    texts = {"storage.backend.class": "memory", "chunk.size": "64", "endpoint.provider.class": name}
    with pytest.raises(ConfigError, match=r"endpoint\.provider\.class"):
        open_places(settings_from(texts))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"endpoint.rules": "pii"}, "endpoint.rules.pii.topics is missing"),
        ({"endpoint.rules": "pii", "endpoint.rules.pii.topics": "("}, "not a regular expression"),
        ({"endpoint.rules": "pii", "endpoint.rules.pii.topics": "a"}, "endpoint.rules.pii.url is missing"),
        ({"endpoint.rules.pii.topics": "a"}, "endpoint.rules does not list"),
        ({"endpoint.rules": "a b"}, "endpoint.rules is"),
        ({"endpoint.prefix.entropy.bits": "3"}, "endpoint.cluster is missing"),
        ({"endpoint.prefix.entropy.bits": "17"}, "0..16"),
        ({"endpoint.layout": "pinterest"}, "endpoint.cluster is missing"),
        ({"uploader.layout": "pinterest"}, "endpoint.cluster is missing"),
        ({"uploader.layout": "pinterest", "endpoint.layout": "plugin", "endpoint.cluster": "c"}, "differs from"),
        ({"endpoint.layuot": "plugin"}, "did you mean endpoint.layout"),
    ],
)
def test_what_is_wrong_is_said_when_settings_are_read(names: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings_from({"storage.backend.class": "memory", "chunk.size": "64", **names})


def test_names_beside_a_brokers_prefix_count() -> None:
    texts = {"rsm.config.storage.backend.class": "memory", "rsm.config.chunk.size": "64", "endpoint.cluster": "c"}
    assert settings_from({**texts, "uploader.layout": "pinterest"}).endpoint.is_raw


def test_a_deletion_is_retryable_only_if_all_its_failures_are() -> None:
    rules = {"endpoint.rules": "pii", "endpoint.rules.pii.topics": "pii-.*", "endpoint.rules.pii.prefix": "x/"}
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "64", **rules})
    busy = ScriptedStore(MemoryObjectStore()).on("delete", do=StoreUnavailableError("busy"))
    denied = ScriptedStore(MemoryObjectStore()).on("delete", do=AccessDeniedError("denied"))
    places = [Place(Endpoint(), busy, ""), Place(Endpoint(prefix="x/"), denied, "x/")]
    store = RoutedStore(places, RulesProvider(settings))
    segments = [RemoteLogSegmentId(TopicIdPartition(_ID, topic, 0), Uuid.random()) for topic in ("orders", "pii-1")]
    with pytest.raises(AccessDeniedError):
        store.delete(f"{main_path(segment, 0)}.log" for segment in segments)
