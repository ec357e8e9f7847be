"""The life of a long-running process: its threads, signals, how it drains, and what it says of itself meanwhile."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType, TracebackType
from typing import Final, Self

from tieredstore.errors import StoreUnavailableError, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.endpoint import Endpoint
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.health import Health
from tieredstore.process.signal_handlers import SignalHandlers
from tieredstore.process.stopping import Stop, is_without_work

_logger: Final = logging.getLogger(__name__)

_STOPPING: Final = "stopping"
_LOST: Final = StoreUnavailableError.exit_code
"""Try again later: a new process may do better than one with a thread that does not come back."""

_LAST_WORDS_S: Final = 1.0
_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 3600.0

Work = Callable[[Stop], None]
"""What a thread of a service does until it is told to stop: its pauses are ``stop.wait``, and then it returns."""


class Service:
    """Threads that work until they are told to stop, and what a process needs around them.

    ``run`` is for a process that is nothing else: it takes the signals and gives the exit code. Inside of a larger
    process (``with Service(...):``) signals are left alone, and the end of the block stops and drains. A thread that
    raises stops all of them. A service lives once.
    """

    def __init__(
        self,
        name: str,
        work: Mapping[str, Work],
        *,
        drain_s: float = 30.0,
        health: Health | None = None,
        listen: tuple[str, int] | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        """``work`` by the names of its threads; ``listen`` is host and port of the endpoint, None for no endpoint.

        ``reload`` is called at SIGHUP, on a thread of its own; without it SIGHUP is left alone.
        """
        self.name = name
        self.health: Health = Health() if health is None else health
        self.stopping: Stop = Stop(drain_s)
        self.endpoint: Endpoint | None = None
        self.failure: BaseException | None = None
        self._work = dict(work)
        self._listen = listen
        self._reload = reload
        self._threads: list[threading.Thread] = []
        self._bell = _Bell()
        self._forget_threads()
        begin_again_after_fork(self)

    def _forget_threads(self) -> None:
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._is_reloading = self._reload_again = False

    def begin_again(self) -> None:
        """In a forked child: none of the threads is here, and the bell is the parent's."""
        self._forget_threads()
        self._threads = []
        self._bell.close()

    def run(self) -> int:
        """Begin, work until a signal, ``stop`` or an error, drain; the exit code. On the main thread only.

        0 when all work has ended, or the code of the error that ended it. SIGTERM and SIGINT stop; the second of them
        ends the process at once, with 128 and its number. Where a thread has not come back by the drain's deadline the
        process is ended with 75: such a thread could hold up the interpreter's end as well. It is not waited for where
        nothing is under way.
        """
        with contextlib.closing(self._bell), _Signals(self._bell, reloads=self._reload is not None) as signals:
            try:
                self.start()
            except Exception as error:  # noqa: BLE001  told as the failure of a thread is
                self._fail("start", error)
            self._supervise(signals)
            if missing := self._still_running():
                if self._is_without_work():
                    os._exit(self._exit_code())
                _say(partial(self._say_missing, missing))
                os._exit(self._exit_code() or _LOST)
            self.join(_LAST_WORDS_S)
        return self._exit_code()

    def start(self) -> None:
        """Begin to answer and to work; ConfigError if nothing can listen at the address."""
        if self._listen is not None:
            self.endpoint = Endpoint(*self._listen, self.health)
            _logger.info("%s: http://%s:%d/readyz says how it is", self.name, self.endpoint.host, self.endpoint.port)
        for name, work in self._work.items():
            self._begin(name, work)

    def stop(self) -> None:
        """Ask all threads to end; returns at once. From any thread, but not from a signal handler, since it locks."""
        self.health.fails(_STOPPING, f"{self.name} is stopping")
        self.stopping.ask()
        self._bell.ring()

    def join(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Wait for the end of all threads; the names of those that go on. Without a time-out until a stop has drained.

        The endpoint answers until all have ended, that the service is not ready.
        """
        if timeout_s is None:
            while self._running and not self.stopping.wait(_POLL_S):
                pass
        # Without a stop none is running any more, and what is left of them ends at once.
        deadline = self.stopping.deadline if timeout_s is None else None
        deadline = deadline or Deadline.after(_LAST_WORDS_S if timeout_s is None else timeout_s)
        for thread in list(self._threads):
            thread.join(max(0.0, deadline.remaining_s()))
        missing = self._still_running()
        if not missing and self.endpoint is not None:
            self.endpoint.close()
        return missing

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if error is None and self.failure is not None:
            raise self.failure

    def _end(self) -> None:
        self.stop()
        if missing := self.join():
            self._say_missing(missing)
        self._bell.close()

    def _begin(self, name: str, work: Work) -> None:
        thread = threading.Thread(
            target=self._run_work, args=(name, work), name=f"tieredstore-{self.name}-{name}", daemon=True
        )
        self._running.add(name)
        try:
            thread.start()
        except BaseException:
            self._running.discard(name)
            raise
        # Those that reloaded before have ended: a service that runs for months keeps none of them.
        self._threads = [*(old for old in self._threads if old.is_alive()), thread]

    def _run_work(self, name: str, work: Work) -> None:
        try:
            work(self.stopping)
        except BaseException as error:  # noqa: BLE001  whatever it is, the others must not work on without this one
            self._fail(name, error)
        finally:
            # In this order: who hears the bell looks at what is running.
            self._running.discard(name)
            self._bell.ring()

    def _fail(self, name: str, error: BaseException) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
        if isinstance(error, TieredStoreError):
            _logger.error("%s: %s: %s", self.name, name, error)
        else:
            _logger.error("%s: %s ended by an error of its own", self.name, name, exc_info=error)
        self.stop()

    def _supervise(self, signals: _Signals) -> None:
        """Until all threads have ended, or should have."""
        while self._running:
            if self._running.isdisjoint(self._work) and not self.stopping.is_asked:
                # All that is left is a reload, which nobody needs any more: it has the time of a drain.
                self.stop()
            deadline = self.stopping.deadline
            if deadline is not None and (deadline.remaining_s() <= 0 or self._is_without_work()):
                return
            self._bell.wait(_LONGEST_POLL_S if deadline is None else min(_POLL_S, deadline.remaining_s()))
            if (signum := signals.take_ending()) is not None:
                self.stop()
                _say(partial(self._say_stopping, signum))
            if signals.take_reload() and not self.stopping.is_asked:
                self._begin_reload()

    def _begin_reload(self) -> None:
        """On a thread of its own, so that a slow one holds up no signal; one at a time, and once more if asked then."""
        with self._lock:
            if self._is_reloading:
                self._reload_again = True
                return
            self._is_reloading = True
        try:
            self._begin("reload", self._reload_all)
        except RuntimeError as error:  # the system has no thread for it now; a later signal may find one
            with self._lock:
                self._is_reloading = False
            _say(partial(_logger.error, "%s: not reloaded: %s", self.name, error))

    def _reload_all(self, stop: Stop) -> None:
        assert self._reload is not None
        while True:
            try:
                self._reload()
            except Exception as error:
                is_ours = isinstance(error, TieredStoreError)
                _logger.error("%s: not reloaded: %s", self.name, error, exc_info=None if is_ours else error)  # noqa: TRY400
            else:
                _logger.info("%s: reloaded", self.name)
            with self._lock:
                if not self._reload_again or stop.is_asked:
                    self._is_reloading = False
                    return
                self._reload_again = False

    def _still_running(self) -> tuple[str, ...]:
        return tuple(sorted(self._running))

    def _is_without_work(self) -> bool:
        """Whether no thread has anything that should end in order."""
        return all(is_without_work(thread) for thread in list(self._threads) if thread.is_alive())

    def _exit_code(self) -> int:
        if self.failure is None:
            return 0
        return self.failure.exit_code if isinstance(self.failure, TieredStoreError) else 1

    def _say_stopping(self, signum: signal.Signals) -> None:
        _logger.info(
            "%s: %s: stopping, for %g s at most; a second one ends it at once",
            self.name, signum.name, self.stopping.drain_s,
        )  # fmt: skip

    def _say_missing(self, missing: tuple[str, ...]) -> None:
        _logger.error(
            "%s: %s did not end within %g s; what was under way there is lost",
            self.name, " and ".join(missing), self.stopping.drain_s,
        )  # fmt: skip
        with contextlib.suppress(Exception):  # a stderr that is no file
            faulthandler.dump_traceback()


class _Bell:
    """Wakes the one thread that waits for it: rung by other threads, and by the system itself when a signal comes.

    A pair of sockets and no lock: Python runs signal handlers in the middle of whatever the main thread does, also
    while it holds a lock that a handler would wait for.
    """

    def __init__(self) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)

    def fileno(self) -> int:
        """What the system writes to."""
        return self._rung.fileno()

    def ring(self) -> None:
        """Wake who waits, now or later."""
        # It is full, then somebody will wake anyway; or closed, then nobody waits any more.
        with contextlib.suppress(OSError):
            self._rung.send(b"\0")

    def wait(self, seconds: float) -> None:
        """Until it is rung, if it was not since the last time."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        if poll.poll(max(0.0, min(seconds, _LONGEST_POLL_S)) * 1000):
            with contextlib.suppress(BlockingIOError):
                self._heard.recv(4096)

    def close(self) -> None:
        """Let go of the sockets."""
        self._heard.close()
        self._rung.close()


class _Signals:
    """The signals of a process while a service runs in it."""

    def __init__(self, bell: _Bell, *, reloads: bool) -> None:
        self._bell = bell
        self._signals = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if reloads else ()))
        self._handlers = SignalHandlers()
        self._endings: list[signal.Signals] = []
        self._reloads: list[int] = []
        self._has_told = False

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals reach the main thread only: run a service there, or use it in a with block")
        even_ignored = frozenset({signal.SIGHUP})  # a service under nohup reloads all the same
        self._handlers.install(self._signals, self._take, self._bell.fileno(), even_ignored=even_ignored)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.restore()

    def take_ending(self) -> signal.Signals | None:
        """The signal that asks for the end, once."""
        if self._has_told or not self._endings:
            return None
        self._has_told = True
        return self._endings[0]

    def take_reload(self) -> bool:
        """Whether a reload was asked for since the last time."""
        if not self._reloads:
            return False
        # One that comes only now is cleared too, and is answered by the reload that follows.
        self._reloads.clear()
        return True

    def _take(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  a handler's signature
        if signum == signal.SIGHUP:
            self._reloads.append(signum)
            return
        self._endings.append(signal.Signals(signum))
        # Here, and not where the first one is handled: the main thread may be held up by a log that nobody reads.
        if len(self._endings) > 1:
            os._exit(128 + signum)


def _say(words: Callable[[], None]) -> None:
    """Log something if that does not take long: nobody may read the log, or a lost thread may hold its lock."""
    talker = threading.Thread(target=words, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread for it
        talker.start()
        talker.join(_LAST_WORDS_S)
