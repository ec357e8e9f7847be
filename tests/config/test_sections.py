"""Settings of wings (such as ``pubsub.*``): read if given, checked with the core's, absent if their wing is absent."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.settings_texts import BASE, error_of
from tieredstore.config import settings_from
from tieredstore.config.fields import registered_parts
from tieredstore.config.names import known_names
from tieredstore.errors import ConfigError
from tieredstore.pubsub.settings import BatchBrokerSettings, BatchClientSettings, BatchSettings
from tieredstore.uploader.settings import uploader_settings_from


@pytest.fixture
def _read_anew() -> Iterator[None]:
    for cached in (registered_parts, known_names):
        cached.cache_clear()
    yield
    for cached in (registered_parts, known_names):
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
    point = EntryPoint("pubsub", f"{module}:SECTIONS", "tieredstore.settings")
    if not is_absent:
        needs_more = SimpleNamespace(load=_lacks_a_library, name="pubsub", module=module)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [needs_more])
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            settings_from({**BASE, "pubsub.cluster": "a"})
        return
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    with pytest.raises(ConfigError, match=r"pubsub\.cluster belongs to tieredstore\.pubsub, which .* lacks"):
        settings_from({**BASE, "pubsub.cluster": "a"})
    with pytest.raises(ConfigError, match=r"uploader\.nice is not known"):
        settings_from({**BASE, "uploader.nice": "1"})


def test_a_source_imports_only_the_parts_whose_properties_it_has() -> None:
    imported = run_fresh(f"""
import sys
from tieredstore.config import settings_from
pair = {{"encryption.key.pairs": "a", "encryption.key.pairs.a.public.key.file": "a"}}
for more in ({{}}, pair, {{"uploader.nice": "1"}}, {{"pubsub.rack": "a"}}):
    try:
        settings_from({{**{BASE!r}, **more}})
    except Exception:
        pass
    print(*[name for name in ("uploader", "pubsub") if f"tieredstore.{{name}}.settings" in sys.modules])
""")
    assert imported.splitlines() == ["", "", "uploader", "uploader pubsub"]


def test_only_the_uploader_reads_the_values_of_its_settings() -> None:
    settings = settings_from({**BASE, "uploader.nice": "99", "uploader.kafka.client.id": "a"})
    assert settings.sections == ()
    with pytest.raises(ConfigError, match=r"uploader\.nice is '99'; it must be an int: 0\.\.19"):
        uploader_settings_from({**BASE, "uploader.nice": "99"})


def _lacks_a_library() -> None:
    import no_such_library  # type: ignore[import-not-found]  # noqa: F401, PLC0415
