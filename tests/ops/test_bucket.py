"""Tests of a bucket: it opens without keys, and closing it closes its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.records.small_segments import ENC
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError
from tieredstore.ops import bucket as bucket_module
from tieredstore.ops.bucket import Bucket, open_bucket

LOST_KEYS = {name: text if "file" not in name else "/nowhere" for name, text in ENC.items()}


def test_only_the_manager_reads_the_key_files(tmp_path: Path) -> None:
    settings = settings_from(
        {"storage.backend.class": "filesystem", "storage.root": str(tmp_path), "chunk.size": "100", **LOST_KEYS}
    )
    with open_bucket(settings) as bucket:
        assert list(bucket.store.list()) == []
        with pytest.raises(ConfigError, match="/nowhere"):
            bucket.manager()


@pytest.mark.parametrize(("masked", "shown"), [("false", "secret/t/0/x.log"), ("true", "<prefix>/t/0/x.log")])
def test_keys_are_shown_as_the_settings_say(masked: str, shown: str) -> None:
    texts = {"storage.backend.class": "memory", "chunk.size": "100"}
    settings = settings_from({**texts, "key.prefix": "secret/", "key.prefix.mask": masked})
    bucket = Bucket(settings, MemoryObjectStore())
    assert bucket.prefix == "secret/"
    assert bucket.show_key("secret/t/0/x.log") == shown


def test_the_store_outlives_its_managers_and_ends_with_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedStore(MemoryObjectStore())
    monkeypatch.setattr(bucket_module, "open_places", lambda _: store)
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "100"})
    with open_bucket(settings) as bucket:
        for _ in range(2):
            with bucket.manager() as manager:
                assert manager.store.identity == bucket.store.identity
        assert store.closes == 0
    assert store.closes == 1
