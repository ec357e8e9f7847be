"""The process of one command: its streams, signals and exit. This module imports little, and no command.

``entry`` imports this module after it has arranged that signals end the process quietly. The parser is not imported
here, because ``--version`` does not need it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from tieredstore.cli.terminal.streams import ReaderGoneError, StandardOutputFailedError, take_streams


def run_at_once(command: Callable[[], int]) -> NoReturn:
    """Run a command that only writes a line. A signal may end the process at any time, because there is nothing to
    undo.
    """
    output, complaints = take_streams(_complain_of)
    sys.exit(_run_to_the_end(command) or output.exit_code or complaints.exit_code)


def run(command: Callable[[], int]) -> NoReturn:
    """Run the command of this process. End the process with the exit code that the command returns."""
    from tieredstore.process.interruption import Interrupted, Interruption

    with Interruption() as interruption:

        def output_failed(error: StandardOutputFailedError) -> None:
            _complain_of(error)
            # Nobody reads the output any more, so do not wait for running threads, which may wait for a store.
            interruption.end_soon(error.exit_code)

        output, complaints = take_streams(output_failed)
        code = 0
        try:
            code = _run_to_the_end(command) or output.exit_code or complaints.exit_code
            interruption.is_over()
        except (Interrupted, KeyboardInterrupt):
            pass
        if interruption.signum is not None:
            code = interruption.exit_code
        if interruption.exit_code or _others_would_hold_up_the_end():
            os._exit(code)
    sys.exit(code)


def _complain_of(error: StandardOutputFailedError) -> None:
    if not isinstance(error, ReaderGoneError):
        from tieredstore.cli.terminal.output import complain

        complain(str(error))


def _run_to_the_end(command: Callable[[], int]) -> int:
    """Run the command and flush its output. Return the exit code, which is 1 after a bug."""
    try:
        code = command()
    except Exception as error:  # noqa: BLE001  reports a bug as Python does
        from tieredstore.process.interruption import is_interruption

        if not is_interruption(error):
            sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    with contextlib.suppress(StandardOutputFailedError):
        sys.stdout.flush()
    return code


def _others_would_hold_up_the_end() -> bool:
    """Return True if the interpreter would wait for threads, which may wait for a store."""
    import threading

    return any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
