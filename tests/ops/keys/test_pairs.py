"""Files of key pairs: durable before any settings name them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tieredstore.errors import ConfigError
from tieredstore.ops.keys.pairs import write_new


def test_a_new_key_is_on_disk_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    write_new(tmp_path / "key1.private.pem", b"a key", mode=0o600)
    assert synced == [False, True]


def test_a_key_whose_name_may_be_lost_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=r"key1.private.pem cannot be written: Input/output error"):
        write_new(tmp_path / "key1.private.pem", b"a key", mode=0o600)
    assert list(tmp_path.iterdir()) == []
