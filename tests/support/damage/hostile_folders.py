"""Keys that no writer makes, next to a segment's keys, and folders where something else replaces an object."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.support.damage.hostile_buckets import SAME, Case, Change, Codes, HostileBucket

_ID: Final = "AAECAwQFBgcICQoLDA0ODw"
_OFFSET: Final = "0" * 20


def _stray(name: str, key: str, codes: Codes = SAME) -> Case:
    """Return a case with an object under a foreign key: it must not be listed, and must not disturb reads."""

    def change(bucket: HostileBucket) -> None:
        path = bucket.folder / "store" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"version":"1"')

    return Case(f"key {name}", change, codes)


KEYS: Final = [
    _stray("of a suffix alone", ".rsm-manifest"),
    _stray("of no topic", f"-{_ID}/0/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of no topic id", f"victim/0/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of a topic id that is none", f"victim-{'!' * 22}/0/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of a topic id spelled otherwise", f"victim-{_ID[:-1]}x/0/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of partition -1", f"victim-{_ID}/-1/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of partition 00", f"victim-{_ID}/00/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of partition 2^31", f"victim-{_ID}/2147483648/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of a partition of 200 digits", f"victim-{_ID}/{'9' * 200}/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of a partition in other digits", f"victim-{_ID}/٣/{_OFFSET}-{_ID}.rsm-manifest"),
    _stray("of an offset of 19 digits", f"victim-{_ID}/0/{_OFFSET[1:]}-{_ID}.rsm-manifest"),
    _stray("of an offset of 200 digits", f"victim-{_ID}/0/{'9' * 200}-{_ID}.rsm-manifest"),
    _stray("of an offset above 2^63", f"victim-{_ID}/0/{'9' * 20}-{_ID}.rsm-manifest"),
    _stray("of a negative offset", f"victim-{_ID}/0/-{_OFFSET[1:]}-{_ID}.rsm-manifest"),
    _stray("of another suffix", f"victim-{_ID}/0/{_OFFSET}-{_ID}.rsm-manifest.bak"),
    _stray("of two suffixes", f"victim-{_ID}/0/{_OFFSET}-{_ID}.log.rsm-manifest"),
    _stray("of a suffix in capitals", f"victim-{_ID}/0/{_OFFSET}-{_ID}.RSM-MANIFEST"),
    _stray("a folder too deep", f"victim-{_ID}/0/0/{_OFFSET}-{_ID}.rsm-manifest"),
    # `ls` lists these folders twice: for the segments, and to find out whether the prefix has any objects.
    replace(_stray("200 folders deep", "/".join(["d"] * 200) + "/x.rsm-manifest"), calls_of_a_byte=12),
    _stray("of letters from right to left", f"\u202evictim-{_ID}.rsm-manifest"),
    _stray("that moves the cursor", "\x1b[2J\x07\n\r.rsm-manifest"),
    _stray("of 255 bytes", "k" * 242 + ".rsm-manifest"),
    _stray("of a percent sign", f"victim%2F-{_ID}/0/{_OFFSET}-{_ID}.rsm-manifest", (4, 0, 0, 0)),
    _stray("of a backslash", f"..\\victim-{_ID}.rsm-manifest"),
    _stray("like a draft", f".victim-{_ID}.tmp"),
]


def _instead(suffix: str, make: Callable[[Path], None]) -> Change:
    """Return a change that replaces one object by what ``make`` puts there."""

    def change(bucket: HostileBucket) -> None:
        path = bucket.path(suffix)
        path.rename(bucket.folder / "away")
        make(path)

    return change


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path must be short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_bytes(b"x")


def _links(bucket: HostileBucket) -> None:
    """Create folders that link to each other, next to the topic's."""
    (bucket.folder / "store" / "loop").mkdir()
    (bucket.folder / "store" / "loop" / "loop").symlink_to(bucket.folder / "store", target_is_directory=True)


def _other_bucket(bucket: HostileBucket) -> None:
    """Replace the topic's folder by a link to one outside the store."""
    topic = bucket.path("log").parents[1]
    shutil.move(topic, bucket.folder / "outside")
    topic.symlink_to(bucket.folder / "outside", target_is_directory=True)


_ABSENT_LOG: Final = (0, 4, 4, 3)
_NO_LOG: Final = (0, 4, 2, 3)
"""Codes for a file that this store cannot read as an object."""

_ABSENT_MANIFEST: Final = (0, 3, 3, 3)

FOLDERS: Final = [
    Case("a folder as log", _instead("log", Path.mkdir), _ABSENT_LOG),
    Case("a full folder as log", _instead("log", _full_folder), _ABSENT_LOG),
    Case("a folder as manifest", _instead("rsm-manifest", Path.mkdir), _ABSENT_MANIFEST),
    Case("a pipe as log", _instead("log", os.mkfifo), _NO_LOG),
    Case("a pipe as indexes", _instead("indexes", os.mkfifo), (0, 4, 0, 3)),
    Case("a pipe as manifest", _instead("rsm-manifest", os.mkfifo), _ABSENT_MANIFEST),
    Case("a socket as manifest", _instead("rsm-manifest", _socket), _ABSENT_MANIFEST),
    Case("a link to itself as log", _instead("log", lambda path: path.symlink_to(path)), _NO_LOG),
    Case("a link to nothing as log", _instead("log", lambda path: path.symlink_to(path.parent / "no")), _NO_LOG),
    Case("a link to a device as log", _instead("log", lambda path: path.symlink_to("/dev/zero")), _NO_LOG),
    Case(
        "a link to a device as manifest",
        _instead("rsm-manifest", lambda path: path.symlink_to("/dev/zero")),
        _ABSENT_MANIFEST,
    ),
    Case("a link out of the store as log", _instead("log", lambda path: path.symlink_to("/etc/passwd")), _NO_LOG),
    Case("folders that hold each other", _links, SAME),
    Case("a topic that is a link", _other_bucket, (0, 3, 3, 3)),
]

CASES: Final = [*KEYS, *FOLDERS]
