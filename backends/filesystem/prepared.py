"""Objects of a folder that wait to be published: hidden files in their folders, whose writers are done."""

from __future__ import annotations

import os
from contextlib import suppress

from tieredstore.backends.filesystem.drafts import publish_kept
from tieredstore.backends.filesystem.errors import OsErrors
from tieredstore.backends.filesystem.folders import DRAFT_MARK, Folder, KeyPath, is_component
from tieredstore.backends.values import Prepared
from tieredstore.errors import InvalidKey


def was_published(root: str, prepared: Prepared) -> bool:
    """Link the hidden file to its key, durably; False if that cannot be: it is gone, or the key is taken."""
    path, draft = KeyPath.of(prepared.key), draft_path(prepared).rpartition("/")[2]
    with (
        OsErrors(root, prepared.key, writing=True),
        suppress(FileNotFoundError, FileExistsError),
        Folder(root, path.folders) as folder,
    ):
        with folder.locked():
            is_there = publish_kept(folder, os.fsencode(draft), path.name, prepared.size)
        if is_there:
            folder.sync()
        return is_there
    return False


def draft_path(prepared: Prepared) -> str:
    """The hidden file's own path. InvalidKey for what is none: the value may come from anywhere."""
    folder, slash, _ = prepared.key.rpartition("/")
    name = os.fsencode(prepared.place)
    if not name.startswith(DRAFT_MARK) or is_component(name) or b"/" in name or b"\0" in name:
        raise InvalidKey(f"{prepared.place!r} is not the name of an object that was prepared in a folder")
    return f"{folder}{slash}{prepared.place}"
