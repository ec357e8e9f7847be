"""Make the documents' pictures from real commands: `make pictures`, or `python -m scripts.pictures [FOLDER]`.

Create a small bucket, run the commands on a 120-column terminal, and render their output as SVG.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from tieredstore.config import load_settings
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import build_segment

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURES: Final = ROOT / "docs" / "pictures"
COLUMNS: Final = 120

SETTINGS: Final = """\
storage.backend.class=filesystem
storage.root=store
chunk.size=65536
compression.enabled=true
"""
LISTING: Final = ("ls -c store.properties", "ls -c store.properties orders --wide")
PLOTS: Final = {
    "stored.png": "ls -c store.properties --plot stored.png",
    "offsets.png": "ls -c store.properties orders -p all --plot offsets.png",
}

_FIRST_MS: Final = 1_767_225_600_000  # 2026-01-01
_HOUR_MS: Final = 3_600_000
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class _Log(NamedTuple):
    """A partition with a segment every ``hours`` hours. The bucket lacks the segment with the number ``missing``."""

    topic: str
    partition: int
    segments: int
    hours: int
    size: int
    begins: int = 0
    missing: int | None = None


_LOGS: Final = (
    _Log("orders", 0, 14, 48, 120_000),
    _Log("orders", 1, 13, 50, 120_000, missing=6),
    _Log("orders", 2, 14, 49, 120_000),
    _Log("page-views", 0, 9, 60, 400_000, begins=140),
    _Log("payments", 0, 7, 90, 90_000, begins=30),
)


def main() -> None:
    """Make all pictures, in docs/pictures or in another folder."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        bucket = Path(scratch)
        fill_bucket(bucket)
        (folder / "ls.svg").write_text(screen(bucket, LISTING))
        for name, command in PLOTS.items():
            printed_by(bucket, command)
            (folder / name).write_bytes((bucket / name).read_bytes())


def fill_bucket(folder: Path) -> None:
    """Create a store of three topics, and its settings next to it. Each call makes the same store, except for segment
    ids."""
    (folder / "store").mkdir()
    (folder / "store.properties").write_text(SETTINGS)
    with RemoteStorageManager(load_settings(folder / "store.properties")) as manager:
        for log in _LOGS:
            _copy(manager, folder / "kafka", log)


def _copy(manager: RemoteStorageManager, log_dir: Path, log: _Log) -> None:
    partition = TopicIdPartition(Uuid(log.topic.encode().ljust(16, b".")), log.topic, log.partition)
    offset = 0
    for number in range(log.segments):
        time_ms = _FIRST_MS + (log.begins + number * log.hours) * _HOUR_MS
        segment = build_segment(
            log_dir, log.size, partition=partition, base_offset=offset, first_timestamp_ms=time_ms, seed=number
        )
        metadata = segment.to_metadata(Uuid.random())
        offset = metadata.end_offset + 1
        if number != log.missing:
            manager.copy_log_segment_data(metadata, segment.files)


def screen(folder: Path, commands: tuple[str, ...]) -> str:
    """Return an SVG of a terminal session with these commands."""
    shown = "\n".join(f"$ tieredstore {command}\n{printed_by(folder, command)}" for command in commands)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(shown.rstrip("\n")))
        # Remove the web fonts, because local fonts with these names suffice, and a browser would download them.
        return _FONTS.sub("", console.export_svg(title="tieredstore", unique_id="tieredstore"))


def printed_by(folder: Path, command: str) -> str:
    """Return the terminal output of ``tieredstore COMMAND``."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {name: text for name, text in os.environ.items() if not name.startswith("TIEREDSTORE_")}
    with subprocess.Popen(
        [sys.executable, "-m", "tieredstore.cli", *shlex.split(command)],
        cwd=folder,
        stdout=theirs,
        env={**environment, "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)},
    ) as process:
        os.close(theirs)
        printed = b""
        with suppress(OSError):  # on Linux, reading raises an error after the command has closed the terminal
            while read := os.read(ours, 65536):
                printed += read
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"tieredstore {command} ended with {process.returncode}")
    return printed.decode().replace("\r\n", "\n")


if __name__ == "__main__":
    main()
