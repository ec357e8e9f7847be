"""``keys new``: files that the key ring accepts, never overwritten, never readable by others."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, Result, spawn, tieredstore, write_settings
from tests.support.golden.keys import pair_in
from tieredstore.config import load_settings, read_properties
from tieredstore.transform.keyring import KeyRing


def make(folder: Path) -> Result:
    return tieredstore("keys", "new", "k", "-d", folder, "--bits", 2048)


def add(settings: Path, key_id: str = "k1", *more: object) -> Result:
    return tieredstore("keys", "new", key_id, "-c", settings, "--bits", 2048, *more)


def test_a_new_pair_lies_where_the_files_other_pairs_do(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    for key_id, more in (("k1", ()), ("k2", ("-d", tmp_path / "keys")), ("k3", ())):
        assert add(settings, key_id, *more).code == 0
    folders = {path.name: path.parent for path in tmp_path.rglob("*.private.pem")}
    assert folders == {f"k{n}.private.pem": tmp_path / ("keys" if n > 1 else "") for n in (1, 2, 3)}


def test_a_folder_that_is_made_for_new_keys_is_their_owners_alone(tmp_path: Path) -> None:
    made, shared = tmp_path / "a" / "keys", tmp_path / "shared"
    shared.mkdir(mode=0o755)
    mask = os.umask(0o002)
    try:
        assert [make(folder).code for folder in (made, shared)] == [0, 0]
    finally:
        os.umask(mask)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (made, shared)] == [0o700, 0o755]
    assert {path.name for path in made.iterdir()} == {"k.private.pem", "k.public.pem"}


def test_a_pair_that_the_key_ring_takes_is_made(tmp_path: Path) -> None:
    tieredstore("keys", "new", "key-1", "-d", tmp_path).clean()
    public, private = tmp_path / "key-1.public.pem", tmp_path / "key-1.private.pem"
    ring = KeyRing("key-1", {"key-1": pair_in(public, private)})
    assert ring.unwrap("key-1", ring.wrap(bytes(32))) == bytes(32)
    assert len(ring.wrap(bytes(32))) == 3072 // 8
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert private.read_text().startswith("-----BEGIN PRIVATE KEY-----\n")
    assert public.read_text().startswith("-----BEGIN PUBLIC KEY-----\n")


def test_what_is_printed_is_the_settings_to_paste(tmp_path: Path) -> None:
    folder = tmp_path / "a = odd: folder#é"
    folder.mkdir()
    printed = make(folder)
    assert "PRIVATE KEY" not in printed.text
    settings = write_settings(tmp_path)
    with settings.open("ab") as file:
        file.write(printed.stdout)
    assert read_properties(settings)["encryption.key.pairs.k.public.key.file"] == str(folder / "k.public.pem")
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    assert {row["key_id"] for row in tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]} == {"k"}
    assert tieredstore("fetch", "-c", settings, "single", 0, 0).code == 0


@pytest.mark.parametrize("name", ["public", "private"])
def test_a_key_is_never_overwritten(name: str, tmp_path: Path) -> None:
    there = tmp_path / f"k.{name}.pem"
    there.write_text("precious")
    make(tmp_path).fails(2, "never overwritten")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("key_id", ["", " ", "a:b", "a,b", "a/b", "..", ".k", "a b", "ключ", "k" * 101, "a\n"])
def test_ids_that_settings_or_manifests_cannot_hold_are_refused(key_id: str, tmp_path: Path) -> None:
    done = tieredstore("keys", "new", "-d", tmp_path, "--", key_id)
    assert (done.code, done.stdout) == (2, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bits", ["1024", "2047", "99999", "x"])
def test_sizes_that_are_weak_or_absurd_are_refused(bits: str, tmp_path: Path) -> None:
    assert tieredstore("keys", "new", "k", "-d", tmp_path, "--bits", bits).code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = make(tmp_path / "file" / "keys")
    assert (done.code, done.stdout) == (2, b"")
    assert done.stderr == f"tieredstore: folder {tmp_path / 'file' / 'keys'} cannot be created: Not a directory\n"


@pytest.mark.parametrize("synced", [0, 1], ids=["private", "public"])
def test_a_pair_that_was_not_finished_leaves_no_file(
    synced: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors: list[int] = []

    def interrupted_sync(descriptor: int) -> None:
        descriptors.append(descriptor)
        if len(descriptors) > synced:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted_sync)
    assert make(tmp_path).code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_keys_go_to_the_current_folder_without_d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = spawn("keys", "new", "k", "--bits", 2048)
    assert done.code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"k.private.pem", "k.public.pem"}
    assert f"={tmp_path / 'k.private.pem'}\n" in done.text


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the owners that files are given. Another user owns the settings file."""
    own_stat, given = Path.stat, list[tuple[int, int]]()

    def stat_as_of_another(path: Path, **options: bool) -> os.stat_result:
        values = list(own_stat(path, **options))
        values[stat.ST_UID] += path.name == "store.properties"
        return os.stat_result(values)

    def give(_: Path, uid: int, gid: int) -> None:
        given.append((uid, gid))

    monkeypatch.setattr(Path, "stat", stat_as_of_another)
    monkeypatch.setattr(os, "chown", give)
    return given


def test_a_settings_file_keeps_its_mode_and_owner(tmp_path: Path, owners: list[tuple[int, int]]) -> None:
    """A broker that runs as another user than the operator must still be able to read the settings file."""
    settings = write_settings(tmp_path)
    settings.chmod(0o664)
    before, mask = settings.stat(), os.umask(0o077)
    try:
        assert add(settings).code == 0
    finally:
        os.umask(mask)
    assert owners == [(os.getuid() + 1, before.st_gid)]
    assert stat.S_IMODE(settings.stat().st_mode) == 0o664


@pytest.mark.usefixtures("owners")
def test_a_settings_file_whose_owner_cannot_be_kept_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = write_settings(tmp_path)
    before = settings.read_bytes()

    def refuse(_: Path, _uid: int, _gid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    add(settings).fails(2, "its owner would change")
    assert settings.read_bytes() == before


@pytest.mark.slow
def test_a_second_pair_joins_the_first_and_other_lines_stay(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    settings.write_bytes(b"# our bucket\n! \xe9\n" + settings.read_bytes())
    settings.chmod(0o640)
    before = settings.read_bytes()
    assert add(settings).code == 0
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    added = add(settings, "k2", "-d", tmp_path)
    assert (added.code, added.text.splitlines()[-1]) == (0, f"{settings} lists k1, k2")
    assert settings.read_bytes().startswith(before)
    assert stat.S_IMODE(settings.stat().st_mode) == 0o640
    properties = read_properties(settings)
    assert (properties["encryption.key.pair.id"], properties["encryption.key.pairs"]) == ("k1", "k1,k2")
    assert add(settings, "k3", "--activate").code == 0
    assert read_properties(settings)["encryption.key.pair.id"] == "k3"
    assert tieredstore("fetch", "-c", settings, "single", 0, 0).code == 0
    assert tieredstore("keys", "rotate", "-c", settings, "--yes").code == 0
    assert {row["key_id"] for row in tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]} == {"k3"}


def test_a_brokers_own_file_gets_the_pair_under_its_prefix(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        "node.id=1\nremote.log.storage.manager.impl.prefix=tiered.\ntiered.storage.backend.class=memory\n"
        "tiered.chunk.size=100\n"
    )
    assert add(settings).code == 0
    assert read_properties(settings)["tiered.encryption.key.pairs"] == "k1"
    assert load_settings(settings).encryption is not None


def test_a_pair_that_is_listed_already_is_not_made(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    assert add(settings).code == 0
    before, folder = settings.read_bytes(), tmp_path / "other"
    folder.mkdir()
    again = add(settings, "k1", "-d", folder)
    assert (again.code, settings.read_bytes(), list(folder.iterdir())) == (2, before, [])
    assert "lists the key pair 'k1' already" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("with_passphrase", [False, True])
def test_a_killed_run_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_passphrase: bool
) -> None:
    settings = write_settings(tmp_path)
    monkeypatch.setenv("PASS", "secret words")
    more = ("--passphrase-env", "PASS") if with_passphrase else ()
    add = ("keys", "new", "k1", "-c", settings, "--bits", 2048, *more)
    before, draft = settings.read_bytes(), settings.with_name(f".{settings.name}.draft")
    # Simulate a kill before the settings were replaced and before the public key was written.
    assert tieredstore(*add).code == 0
    added, private = settings.read_bytes(), (tmp_path / "k1.private.pem").read_bytes()
    settings.write_bytes(before)
    draft.write_bytes(b"secrets")
    (tmp_path / "k1.public.pem").unlink()
    assert tieredstore(*add).code == 0
    assert (settings.read_bytes(), (tmp_path / "k1.private.pem").read_bytes()) == (added, private)
    assert not draft.exists()
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    assert tieredstore("fetch", "-c", settings, "single", 0, 0).code == 0


@pytest.mark.parametrize("content", [b"half a ke", b""])
def test_files_that_are_no_pair_are_not_taken_for_one(tmp_path: Path, content: bytes) -> None:
    settings = write_settings(tmp_path)
    before = settings.read_bytes()
    add = ("keys", "new", "k1", "-c", settings, "--bits", 2048)
    assert tieredstore(*add).code == 0
    settings.write_bytes(before)
    for name in ("k1.private.pem", "k1.public.pem"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        refused = tieredstore(*add)
        assert (refused.code, settings.read_bytes(), (tmp_path / name).read_bytes()) == (2, before, content)
        assert "does not match" in refused.stderr
        (tmp_path / name).write_bytes(whole)


def test_two_runs_never_change_one_file_at_once(tmp_path: Path) -> None:
    settings = write_settings(tmp_path)
    with settings.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = add(settings)
    assert refused.code == 2
    assert "is being changed by another process" in refused.stderr
    assert add(settings).code == 0


def test_a_pair_becomes_active_in_a_settings_file_alone(tmp_path: Path) -> None:
    tieredstore("keys", "new", "k", "-d", tmp_path, "--activate").fails(2, "--activate changes a settings file")
    assert list(tmp_path.iterdir()) == []
