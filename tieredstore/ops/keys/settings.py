"""Adds a key pair to a settings file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

import javaproperties

from tieredstore.config.encryption import PAIRS
from tieredstore.config.properties import own_properties, read_properties
from tieredstore.errors import ConfigError
from tieredstore.ops.keys.pairs import KeyPairFiles, write_new

_ENABLED: Final = "encryption.enabled"
_ACTIVE: Final = "encryption.key.pair.id"


def list_pairs(path: Path) -> tuple[str, ...]:
    """Return the ids of the key pairs in a settings file. Raise ConfigError if the file is unreadable."""
    ours = own_properties(read_properties(path), str(path)).values
    return tuple(key_id for key_id in (part.strip() for part in ours.get(PAIRS, "").split(",")) if key_id)


def folder_of_pairs(path: Path) -> Path:
    """Return the folder of the last listed pair's keys. If no pair is listed, return the folder of the settings
    file."""
    ours = own_properties(read_properties(path), str(path)).values
    beside = path.absolute().parent
    for key_id in reversed(list_pairs(path)):
        for kind in ("private", "public"):
            if file := ours.get(f"{PAIRS}.{key_id}.{kind}.key.file", "").strip():
                return (beside / file).parent
    return beside


def add_key_pair(path: Path, files: KeyPairFiles, *, activate: bool = False) -> None:
    """Add the pair to a settings file. The file may be a broker's own.

    All other lines and comments stay. The file is replaced atomically and keeps its mode and owner. The new pair
    becomes active if ``activate`` is true, or if no pair is active.

    Raise ConfigError if the file lists the id already, or cannot be read or written.
    """
    own = own_properties(read_properties(path), str(path))
    listed = list_pairs(path)
    if files.key_id in listed:
        raise ConfigError(f"{path} lists the key pair {files.key_id!r} already; choose another id")
    lines = {
        _ENABLED: "true",
        PAIRS: ",".join([*listed, files.key_id]),
        **files.settings(),
    }
    if activate or not own.values.get(_ACTIVE):
        lines[_ACTIVE] = files.key_id
    # Java reads such files as Latin-1, so other characters are escaped.
    before = path.read_bytes()
    document = javaproperties.PropertiesFile.loads(before.decode("latin-1"))
    for name, value in lines.items():
        if own.values.get(name) != value:
            document[f"{own.prefix}{name}"] = value
    with _lock(path, before) as target:
        _replace(target, document.dumps().encode("latin-1"))


@contextlib.contextmanager
def _lock(path: Path, content: bytes) -> Generator[Path]:
    """Lock the file and yield its real path. Raise ConfigError if its content has changed."""
    target = path.resolve()
    changing = f"{path} is being changed by another process; run the command again"
    try:
        with target.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.read() != content or target.read_bytes() != content:
                raise ConfigError(changing)
            yield target
    except BlockingIOError:
        raise ConfigError(changing) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _replace(target: Path, content: bytes) -> None:
    # Give all drafts (unfinished files) the same name. The next run then removes the draft of a killed run, which
    # contains secrets.
    draft = target.with_name(f".{target.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        status = target.stat()
        write_new(draft, content, mode=stat.S_IMODE(status.st_mode) & 0o700)
        # Keep owner and mode, because a broker under another user may read the file. Change the owner first, because a
        # change of owner may clear bits of the mode.
        if (status.st_uid, status.st_gid) != (draft.stat().st_uid, draft.stat().st_gid):
            _chown(draft, target, status)
        draft.chmod(stat.S_IMODE(status.st_mode))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _chown(draft: Path, target: Path, status: os.stat_result) -> None:
    try:
        os.chown(draft, status.st_uid, status.st_gid)
    except PermissionError as error:
        raise ConfigError(
            f"{target} was not changed: its owner would change; run this as user {status.st_uid} of "
            f"the group {status.st_gid}"
        ) from error
