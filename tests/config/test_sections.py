"""Settings of wings (such as ``pubsub.*``): read if given, checked with the core's, absent if their wing is absent."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.settings_texts import BASE, error_of
from tieredstore.config import settings_from
from tieredstore.config.names import known_names
from tieredstore.config.sections import wing_sections
from tieredstore.errors import ConfigError
from tieredstore.pubsub.settings import BatchBrokerSettings, BatchClientSettings, BatchSettings


@pytest.fixture
def _read_anew() -> Iterator[None]:
    for cached in (wing_sections, known_names):
        cached.cache_clear()
    yield
    for cached in (wing_sections, known_names):
        cached.cache_clear()


def test_what_a_source_names_is_read_and_the_rest_has_its_defaults() -> None:
    given = {"pubsub.cluster": "a/b", "pubsub.topic.config": "orders.json", "pubsub.kafka.bootstrap.servers": "k:1"}
    settings = settings_from({**BASE, **given}, base_dir=Path("/etc"))
    own = pickle.loads(pickle.dumps(settings)).section(BatchSettings)
    assert (own.cluster, own.topic_config) == ("a/b", Path("/etc/orders.json"))
    assert [(name, text.get_secret_value()) for name, text in own.kafka] == [("bootstrap.servers", "k:1")]
    assert [type(section) for section in settings.sections] == [BatchSettings]
    assert settings.section(BatchClientSettings) == BatchClientSettings()
    broker = BatchBrokerSettings().model_copy(update={"rack": "a"})
    assert settings.with_section(broker).section(BatchBrokerSettings).rack == "a"
    assert settings.with_section(broker).with_section(BatchBrokerSettings()).section(BatchBrokerSettings).rack == ""
    assert settings_from(BASE).sections == ()


def test_what_is_wrong_with_them_is_told_with_the_rest() -> None:
    wrong = {"pubsub.uploads": "0", "chunk.size": "0", "pubsub.batch.byte": "1", "pubsub.broker.tls.key": "key.pem"}
    error = error_of({**BASE, **wrong})
    assert error.startswith("settings: 4 settings are wrong:\n")
    for expected in (
        "pubsub.uploads is '0'; it must be",
        "pubsub.batch.byte is not known; did you mean pubsub.batch.bytes",
        "pubsub.broker.tls.key and pubsub.broker.tls.certificate belong together",
    ):
        assert expected in error


def test_names_without_the_prefix_of_the_others_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    prefixed = {f"rsm.config.{name}": text for name, text in BASE.items()}
    with caplog.at_level(logging.WARNING, "tieredstore.config"):
        settings = settings_from({**prefixed, "pubsub.rack": "a", "node.id": "1"}, source="forgotten.properties")
    assert "forgotten.properties: pubsub.rack are ignored" in caplog.text
    assert settings.sections == ()


@pytest.mark.usefixtures("_read_anew")
@pytest.mark.parametrize(
    ("module", "is_absent"),
    [("tieredstore.absent.settings", True), ("tieredstore.config.absent", True), ("tieredstore.needs_more", False)],
)
def test_a_wing_that_is_absent_is_skipped_and_another_failure_is_none_of_that(
    monkeypatch: pytest.MonkeyPatch, module: str, *, is_absent: bool
) -> None:
    point = EntryPoint("gone", f"{module}:SECTIONS", "tieredstore.settings")
    if not is_absent:
        needs_more = SimpleNamespace(load=_lacks_a_library, name="gone", module=module)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [needs_more])
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            settings_from({**BASE, "pubsub.cluster": "a"})
        return
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    with pytest.raises(ConfigError, match=r"pubsub\.cluster is not known"):
        settings_from({**BASE, "pubsub.cluster": "a"})


def _lacks_a_library() -> None:
    import no_such_library  # type: ignore[import-not-found]  # noqa: F401, PLC0415
