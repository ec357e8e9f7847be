"""Run ``upload`` in a process, kill it at each store operation to sweep, then run it again.

The program forks, so it must stay single-threaded: python -m tests.support.cli.cli_kill_sweep WORK_FOLDER LOG_DIR. It
prints one JSON line per kill: how the child ended, and the store's content after a second and a third run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import get_args

from tests.support.cli.cli_process import stored_files, tieredstore, write_settings
from tests.support.cli.cli_stores import KillingStore
from tests.support.stores.doubles import Moment
from tests.support.stores.operation_sweep import kinds_of, numbers_to_sweep

SETTINGS = {"compression.enabled": "true"}


def new_settings(folder: Path) -> tuple[Path, Path]:
    """Return the settings of a new store, and those of the same store with faults."""
    folder.mkdir(parents=True)
    settings = write_settings(folder, SETTINGS)
    faulty = folder / "faulty.properties"
    faulty.write_text(f"{settings.read_text()}\nstorage.backend.class=tests.support.cli.cli_stores:KillingStore\n")
    return settings, faulty


def numbers_of(folder: Path, log_dir: Path) -> list[int]:
    """Run an undisturbed upload. Return the numbers of the operations at which later uploads are killed."""
    _, faulty = new_settings(folder)
    tieredstore("upload", "-c", faulty, log_dir)
    return numbers_to_sweep(kinds_of(KillingStore.last.operations))


def run_killed(faulty: Path, log_dir: Path, number: int, moment: Moment) -> bool:
    """Upload in a child, which dies at one moment of an operation. Return False if the operation never reached this
    moment, because not every operation has a middle and an answer.
    """
    child = os.fork()
    if not child:
        KillingStore.kill_at, KillingStore.kill_moment = number, moment
        os._exit(tieredstore("upload", "-c", faulty, log_dir).code)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def sweep(work: Path, log_dir: Path) -> None:
    numbers = numbers_of(work / "quiet", log_dir)
    for moment in get_args(Moment):
        for number in numbers:
            folder = work / f"{moment}-{number}"
            settings, faulty = new_settings(folder)
            died = run_killed(faulty, log_dir, number, moment)
            visible = tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0]
            again = tieredstore("upload", "-c", settings, log_dir, "--json")
            objects = stored_files(folder)
            third = tieredstore("upload", "-c", settings, log_dir, "--json")
            stored = {
                "moment": moment,
                "number": number,
                "died": died,
                "visible": visible,
                "second_run": [again.code, again.rows[1]],
                "third_run": [third.code, third.rows[1]],
                "third_run_added": stored_files(folder) != objects,
                "segments": tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0],
                "equal": equal(settings, log_dir),
            }
            sys.stdout.write(json.dumps(stored) + "\n")
            shutil.rmtree(folder)


def equal(settings: Path, log_dir: Path) -> bool:
    """Return True if ``fetch`` returns each log unchanged. This also proves that no segment is stored twice, because
    ``fetch`` then refuses the offset.
    """
    logs = sorted(log_dir.rglob("*.log"))
    fetched = [
        tieredstore("fetch", "-c", settings, *log.parent.name.rsplit("-", 1), int(log.stem)).stdout for log in logs
    ]
    return fetched == [log.read_bytes() for log in logs]


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), Path(sys.argv[2]))
