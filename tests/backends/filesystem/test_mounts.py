"""A store in a folder on NFS reports no conditional writes, and operations that need conditional writes refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pubsub.pubsub_topics import topics_in
from tieredstore.backends.filesystem.folders import file_system_in
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import ConfigError

TABLE = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:40 / /mnt/shared rw shared:9 - nfs4 server:/export rw,vers=4.2
41 22 0:41 / /mnt/with\040blank rw - nfs server:/two rw
42 40 0:42 / /mnt/shared/local rw - xfs /dev/sdb1 rw
43 22 0:43 / /mnt/over rw - ext4 /dev/sdc1 rw
44 43 0:44 / /mnt/over rw - nfs4 server:/over rw
damaged
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/store", "ext4"),
        ("/mnt/shared", "nfs4"),
        ("/mnt/shared/a/b", "nfs4"),
        ("/mnt/shared2", "ext4"),
        ("/mnt/shared/local/a", "xfs"),
        ("/mnt/with blank/a", "nfs"),
        ("/mnt/over/a", "nfs4"),
    ],
)
def test_a_path_is_of_the_mount_that_is_seen_there(path: str, kind: str) -> None:
    assert file_system_in(TABLE, path) == kind


def test_topics_of_batches_are_refused_on_nfs_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FilesystemObjectStore(tmp_path).conditional_writes
    table = f"22 1 8:1 / {tmp_path} rw - nfs4 server:/export rw\n".encode()
    monkeypatch.setattr(Path, "read_bytes", lambda _: table)
    assert not FilesystemObjectStore(tmp_path).conditional_writes
    with pytest.raises(ConfigError, match="pubsub needs a store with atomic conditional writes"):
        topics_in(tmp_path)

    def no_table(_: Path) -> bytes:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_bytes", no_table)
    assert FilesystemObjectStore(tmp_path).conditional_writes
