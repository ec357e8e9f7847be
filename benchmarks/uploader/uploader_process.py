"""The uploader in a separate process, as operators run it, and its peak memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_LONG_S: Final = 3600.0


@dataclass(slots=True)
class UploaderProcess:
    """A process of ``tieredstore uploader``. ``peak_mib`` is the peak memory that was last recorded."""

    process: subprocess.Popen[bytes] = field(repr=False)
    peak_mib: float = 0.0

    def is_looked_at_until(self, is_done: Callable[[], bool]) -> bool:
        """Record the peak memory, which Linux reports only while the process lives; return ``is_done()``."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_mib = int(line.split()[1]) / 1024
        return is_done()


@contextmanager
def uploader_process(settings: dict[str, str], folder: Path, *words: str) -> Generator[UploaderProcess]:
    """Run the uploader with ``settings``, which are written to a file in ``folder``; stop it at the end of the
    block."""
    file = folder / "uploader.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    command: list[str | Path] = [Path(sys.executable).with_name("tieredstore"), "uploader", "-c", file, *words]
    with (folder / "uploader.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield UploaderProcess(process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(_LONG_S)
