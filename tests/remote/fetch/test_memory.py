"""Memory of copy and fetch is bounded by the settings, whatever the segment's size."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.records.small_segments import ENC, ZSTD
from tieredstore.testing.segments import build_segment

MIB = 1 << 20

CHILD = """
import json, resource, sys
from pathlib import Path
from tieredstore.config import settings_from
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import Uuid
from tieredstore.remote import RemoteStorageManager

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

after_imports = peak()
settings, logs = json.loads(sys.argv[1]), Path(sys.argv[2])
segment = describe(discover(logs).segments[0])
metadata = segment.to_metadata(Uuid.random())
with RemoteStorageManager(settings_from(settings)) as manager:
    manager.copy_log_segment_data(metadata, segment.files)
    after_copy = peak()
    buffer = memoryview(bytearray(4 << 20))
    with manager.fetch_log_segment(metadata, 0) as stream, segment.files.log_segment.open("rb") as original:
        expected = memoryview(bytearray(len(buffer)))
        while got := stream.readinto(buffer):
            assert original.readinto(expected[:got]) == got
            assert expected[:got] == buffer[:got]
print(json.dumps([after_copy - after_imports, peak() - after_imports, metadata.segment_size_in_bytes]))
"""


def peaks_above_imports(folder: Path, size: int) -> tuple[int, int]:
    """Return the peaks of resident bytes after the copy and after the fetch, each minus the peak after the imports."""
    build_segment(folder / "logs", size)
    (folder / "store").mkdir()
    settings = {"storage.backend.class": "filesystem", "storage.root": str(folder / "store"), "chunk.size": "4194304"}
    # Use two threads on any machine. Start by a shell, because the system counts a parent's peak as its child's.
    settings |= ZSTD | ENC | {"transform.thread.pool.size": "2"}
    command = shlex.join([sys.executable, "-c", CHILD, json.dumps(settings), str(folder / "logs")])
    shell = ["sh", "-c", f"{command}; exit $?"]
    result = subprocess.run(shell, capture_output=True, text=True, timeout=800, check=False)
    assert result.returncode == 0, result.stderr
    copy, fetch, copied = json.loads(result.stdout)
    assert copied > 0.99 * size
    return copy, fetch


@pytest.mark.slow
@pytest.mark.parametrize("large_mib", [400, pytest.param(1900, marks=pytest.mark.soak)])
def test_peak_memory_is_bounded_and_does_not_grow_with_the_segment(
    tmp_path_factory: pytest.TempPathFactory, large_mib: int
) -> None:
    small = peaks_above_imports(tmp_path_factory.mktemp("small"), 64 * MIB)
    large = peaks_above_imports(tmp_path_factory.mktemp("large"), large_mib * MIB)
    assert max(large) <= 150 * MIB
    for of_small, of_large in zip(small, large, strict=True):
        assert abs(of_large - of_small) <= 16 * MIB
