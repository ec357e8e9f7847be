from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.errors import InvalidKeyError, StoreError

DRAFT = ".~tieredstore-"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> FilesystemObjectStore:
    return FilesystemObjectStore(root)


@pytest.mark.parametrize(
    "key",
    [
        "/absolute", "trailing/", "a//b", ".", "..", "a/./b", "a/../b", "../outside", "a/..", "nul\0", "back\\slash",
        "..\\outside", "c" * 256, "ü" * 128, "a/" + "c" * 256, f"{DRAFT}x", f"a/{DRAFT}", f"{DRAFT}/b",
    ],
)  # fmt: skip
def test_a_key_that_is_no_path_below_the_root_is_refused(store: FilesystemObjectStore, root: Path, key: str) -> None:
    for operation in (
        lambda: store.put(key, b""),
        lambda: store.put(key, b"", if_absent=True),
        lambda: store.get(key),
        lambda: store.get(key, 3, 3),
        lambda: store.get_into(key, 0, bytearray(1)),
        lambda: store.head(key),
        lambda: store.replace(key, b"", "etag"),
        lambda: store.delete([key]),
    ):
        with pytest.raises(InvalidKeyError):
            operation()
    assert list(root.parent.rglob("*")) == [root]
    assert list(store.list(key)) == []


@given(st.text(alphabet=st.sampled_from("./\\~ab\0é"), max_size=12))
@example("../../x")
@example("a/../../x")
def test_no_key_writes_outside_of_the_root(key: str) -> None:
    with tempfile.TemporaryDirectory() as outer:
        root = Path(outer, "root")
        root.mkdir()
        store = FilesystemObjectStore(root)
        try:
            store.put(key, b"data")
        except InvalidKeyError:
            assert list(Path(outer).rglob("*")) == [root]
            return
        (written,) = (path for path in Path(outer).rglob("*") if path.is_file())
        assert str(written.relative_to(root)) == key
        assert [info.key for info in store.list()] == [key]
        store.delete([key])
        assert list(Path(outer).rglob("*")) == [root]


@pytest.mark.parametrize("inside", [True, False])
def test_links_are_not_followed(store: FilesystemObjectStore, root: Path, inside: bool) -> None:
    target = (root if inside else root.parent) / "target"
    target.mkdir()
    (target / "object").write_bytes(b"data")
    (root / "folder").symlink_to(target)
    (root / "file").symlink_to(target / "object")
    (root / "dangling").symlink_to(root.parent / "nowhere")
    for key in ("folder/object", "file", "dangling", "folder", "dangling/object"):
        for operation in (
            lambda k=key: store.get(k),
            lambda k=key: store.head(k),
            lambda k=key: store.get_into(k, 0, bytearray(1)),
            lambda k=key: store.put(k, b"new"),
            lambda k=key: store.put(k, b"new", if_absent=True),
            lambda k=key: store.delete([k]),
        ):
            with pytest.raises(InvalidKeyError, match="symbolic link"):
                operation()
    assert [info.key for info in store.list()] == (["target/object"] if inside else [])
    assert (target / "object").read_bytes() == b"data"
    assert list(target.iterdir()) == [target / "object"]
    assert not (root.parent / "nowhere").exists()


def test_a_listing_says_which_links_it_passes_over(
    store: FilesystemObjectStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "topic").symlink_to(root.parent)
    assert list(store.list()) == []
    assert "topic is a symbolic link" in caplog.text


def test_special_files_are_no_objects_and_block_nobody(store: FilesystemObjectStore, root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(root, os.O_RDONLY)
        # Use the descriptor's path, because the test's own folder may be too long for a socket's address.
        listener.bind(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        assert list(store.list()) == []
        for key in ("pipe", "socket"):
            for operation in (lambda k=key: store.get(k), lambda k=key: store.put(k, b"")):
                with pytest.raises(StoreError):
                    operation()


def test_an_object_and_a_folder_cannot_share_a_name(store: FilesystemObjectStore) -> None:
    store.put("a/b", b"data")
    for key in ("a", "a/b/c", "a/b/c/d"):
        for if_absent in (False, True):
            with pytest.raises(InvalidKeyError, match=r"has its name|the name of a folder"):
                store.put(key, b"new", if_absent=if_absent)
    assert [info.key for info in store.list()] == ["a/b"]


def test_names_that_are_no_keys_are_not_listed(store: FilesystemObjectStore, root: Path) -> None:
    for name in (b"back\\slash", b"\xff\xfe", f"{DRAFT}0123".encode(), b"right"):
        Path(os.fsdecode(os.path.join(os.fsencode(root), name))).write_bytes(b"")  # noqa: PTH118  pathlib takes no bytes
    assert [info.key for info in store.list()] == ["right"]
