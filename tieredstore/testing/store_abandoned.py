"""What a store has left of writes that did not end: a part of ``ObjectStoreTests``."""

# ruff: noqa: D102  the names of the tests say what they show

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from tieredstore.backends.base import AbandonedWrite, ObjectStore
from tieredstore.errors import ObjectNotFound
from tieredstore.testing.store_access import StoreAccess

_KILLED_PUT = """
    import os, pickle, signal, sys, time

    def body():
        for _ in range(12):
            yield bytes(1 << 20)
        # For parts that are on their way.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
        yield b""

    pickle.loads(sys.stdin.buffer.read()).put("folder/object", body())
"""


class AbandonedTests(StoreAccess):
    """Nothing of it is seen, and what can be listed can be told from objects, and discarded where that is possible."""

    def test_writes_that_ended_have_left_nothing(self, store: ObjectStore) -> None:
        store.put("folder/object", b"first")
        store.put("folder/large", (bytes(1 << 20) for _ in range(12)))
        store.replace("folder/object", b"second", self.etag(store, "folder/object"))
        with pytest.raises(_BodyBrokenError):
            store.put("folder/broken", _breaking(12))
        left = [*self._abandoned(store, "folder/object"), *self._abandoned(store, "folder/large")]
        assert left == []
        # What a service alone can remove stays for it: there is no object for it to belong to.
        assert [write for write in self._abandoned(store, "folder/broken") if write.removable] == []

    def test_a_killed_write_is_seen_by_nobody_and_can_be_discarded(self, store: ObjectStore) -> None:
        if not self.picklable:
            # Objects that another process cannot write end with this one.
            return
        self._put_and_be_killed(store)
        assert list(store.list()) == []
        with pytest.raises(ObjectNotFound):
            store.get("folder/object")
        for write in self._abandoned(store, "folder/object"):
            assert write.key.startswith("folder/")
            assert write.size is None or write.size > 0
            assert write.started_ms is None or abs(write.started_ms - time.time() * 1000) < 3_600_000
            assert store.discard(write) == write.removable
            # Again, it does no harm.
            store.discard(write)
        assert [write for write in self._abandoned(store, "folder/object") if write.removable] == []
        assert list(store.list()) == []
        store.put("folder/object", b"written", if_absent=True)
        assert store.get("folder/object") == b"written"
        assert self._abandoned(store, "folder/object") == []

    def test_the_store_tells_its_own_time(self, store: ObjectStore) -> None:
        before = store.now_ms()
        if before is None:
            return  # as the contract allows: then nothing in it is known to be old
        store.put("folder/timed", b"")
        written = store.head("folder/timed").modified_ms
        store.delete(["folder/timed"])
        after = store.now_ms()
        assert after is not None
        assert written is not None
        # Services tell whole seconds, some cut off and some rounded.
        assert before - 1000 <= written <= after + 1000
        assert list(store.list()) == []
        assert isinstance(list(store.kept_after_delete()), list)

    def test_what_was_abandoned_below_another_prefix_is_not_told(self, store: ObjectStore) -> None:
        with pytest.raises(_BodyBrokenError):
            store.put("folder/object", _breaking(12))
        assert list(store.abandoned_writes("elsewhere/")) == []
        assert list(store.abandoned_writes("folder/object/below")) == []

    def _abandoned(self, store: ObjectStore, key: str) -> list[AbandonedWrite]:
        """Those of one key: all that some servers tell."""
        return list(store.abandoned_writes(key))

    def _put_and_be_killed(self, store: ObjectStore) -> None:
        """Write 12 MiB to ``folder/object`` in a process that is killed before its ``put`` ends."""
        killed = subprocess.run(  # noqa: S603  our own code, in an interpreter of its own
            [sys.executable, "-c", textwrap.dedent(_KILLED_PUT)],
            input=pickle.dumps(store),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert killed.returncode == -9, killed.stderr.decode()


class _BodyBrokenError(Exception):
    """What a body of these tests raises."""


def _breaking(mebibytes: int) -> Iterator[bytes]:
    for _ in range(mebibytes):
        yield bytes(1 << 20)
    raise _BodyBrokenError
