"""What an earlier release wrote is read and continued; what a later one wrote is refused, and stays as it is."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.versions.state import CONTINUED, FOLDER, State, collect
from tieredstore.errors import NewerVersionError
from tieredstore.versions import (
    DISK_CACHE,
    KINDS,
    VERIFY_STATE,
    StateKind,
    kind_of,
    version_in,
)

LOCAL = {
    "export note": "export/_tieredstore/export/orders.parquet.json",
    "sealed private key": "key.sealed",
    "state file of verify": "verify",
    "checkpoint of the Spark source": "spark.json",
    "checkpoint of the memq source": "memq.json",
    "prepared restore": "restore.json",
    "cut of a restore": "restore-cut.json",
    "position of a restore": "restore-position.json",
    "list of restored offsets": "restore-offsets.json",
    "disk cache": "cache/tieredstore-v1",
}
"""Paths of the kinds of state that are stored on a disk instead of in a bucket."""


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State.load(FOLDER, tmp_path / "local")


def test_every_kind_is_known_here() -> None:
    assert CONTINUED.keys() == {*KINDS}
    assert {kind.name for kind in KINDS if kind.place is None} == LOCAL.keys()


def test_the_golden_folder_has_each_kind_and_nothing_unknown(state: State) -> None:
    found: set[StateKind | None] = set()
    for store in state.stores.values():
        for info in store.list():
            kind = kind_of(info.key)
            found.add(kind)
            is_own = "!tieredstore/" in info.key or "_tieredstore/" in info.key
            assert (kind is not None) >= is_own, info.key
            if kind is not None:
                assert version_in(store.get(info.key)[:64]) == 1, info.key
    assert found - {None} == {kind for kind in KINDS if kind.place is not None}
    assert all((state.local / place).exists() for place in LOCAL.values())


@pytest.mark.parametrize("kind", CONTINUED, ids=lambda kind: kind.name)
def test_what_an_earlier_release_wrote_is_continued(kind: StateKind, state: State) -> None:
    CONTINUED[kind](state)


def raised(data: bytes) -> bytes:
    """Return a JSON object with its version raised by one."""
    changed = re.sub(rb'^(\{\s*(?:"format": "[a-z.]+",\s*)?"version": ?)1\b', rb"\g<1>2", data)
    assert changed != data
    return changed


def raise_version(kind: StateKind, state: State) -> dict[str, bytes]:
    """Give all state of a kind the version of a later release. Return the contents of all objects and files."""
    contents: dict[str, bytes] = {}
    for name, store in state.stores.items():
        for info in store.list():
            if kind_of(info.key) is kind:
                data = store.get(info.key)
                store.put(info.key, raised(data))
                contents[f"{name}/{info.key}"] = store.get(info.key)
    path = None if kind.place is not None else state.local / LOCAL[kind.name]
    if kind is DISK_CACHE and path is not None:
        path.rename(path.with_name("tieredstore-v2"))
    elif kind is VERIFY_STATE and path is not None:
        with closing(sqlite3.connect(path)) as database:
            database.execute("UPDATE bucket SET format = 'tieredstore verify 2'")
            database.execute("DROP TABLE sound")
            database.commit()
    elif path is not None:
        path.write_bytes(raised(path.read_bytes()))
    return contents | dict(files_of(state))


def files_of(state: State) -> Iterator[tuple[str, bytes]]:
    later = state.local / "cache" / "tieredstore-v2"
    for path in [*(state.local / place for place in LOCAL.values()), *later.rglob("*")]:
        if path.is_file():
            yield str(path), path.read_bytes()


def contents_of(state: State, places: dict[str, bytes]) -> dict[str, bytes]:
    now = dict(files_of(state))
    for name, store in state.stores.items():
        now |= {f"{name}/{info.key}": store.get(info.key) for info in store.list()}
    return {place: now.get(place, b"gone") for place in places}


@pytest.mark.parametrize("kind", CONTINUED, ids=lambda kind: kind.name)
def test_what_a_later_release_wrote_is_refused_and_stays(kind: StateKind, state: State) -> None:
    before = raise_version(kind, state)
    if kind is DISK_CACHE:
        CONTINUED[kind](state, is_new=True)  # each version of the cache has its own folder
    else:
        with pytest.raises(NewerVersionError, match=rf" is a {kind.name} of version 2, .*upgrade tieredstore") as error:
            CONTINUED[kind](state)
        assert "\n" not in str(error.value).strip()
    collect(state)
    assert contents_of(state, before) == before


def test_the_collectors_delete_what_they_may(state: State) -> None:
    before = {info.key for info in state.bucket.list()}
    collect(state)
    assert before > {info.key for info in state.bucket.list()}


def test_without_a_version_it_is_damaged_and_not_old(state: State) -> None:
    key = "!tieredstore/holds/case-0.json"
    state.bucket.put(key, state.bucket.get(key).replace(b'"version": 1,', b""))
    with pytest.raises(Exception, match="does not begin with its version"):
        CONTINUED[next(kind for kind in KINDS if kind.name == "legal hold")](state)
