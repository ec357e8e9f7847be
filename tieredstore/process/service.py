"""Lifecycle of a long-running process: threads, signals, draining and health."""

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
from types import FrameType
from typing import Final, Self

from tieredstore.errors import StoreUnavailableError, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.endpoint import Endpoint, Page
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.health import Health
from tieredstore.process.interruption import SignalHandlers
from tieredstore.process.stopping import Stop, is_without_work

_logger: Final = logging.getLogger(__name__)

_STOPPING: Final = "stopping"
_RELOAD: Final = "reload"
_LOST: Final = StoreUnavailableError.exit_code
"""The exit code if a thread hangs. It means "try again later", because a new process may succeed."""

_LAST_WORDS_S: Final = 1.0
_POLL_S: Final = 0.2
_LONGEST_POLL_S: Final = 3600.0

Work = Callable[[Stop], None]
"""The function of a service's thread. It must pause only by ``stop.wait``, and return after a stop is requested."""


class Service:
    """Runs threads until a stop; handles the process's signals, draining and health.

    An error of one thread stops all threads. A service can run only once.
    """

    def __init__(
        self,
        name: str,
        work: Mapping[str, Work],
        *,
        drain_s: float = 30.0,
        health: Health | None = None,
        listen: tuple[str, int] | None = None,
        pages: Mapping[str, Page] | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        """Make a service. ``work`` maps thread names to functions. ``listen`` is host and port of the endpoint; None
        means no endpoint. ``pages`` are further pages of the endpoint, by path.

        SIGHUP calls ``reload`` on a separate thread. Without ``reload``, the service does not handle SIGHUP.
        """
        self.name = name
        self.health: Health = Health() if health is None else health
        self.stopping: Stop = Stop(drain_s)
        self.endpoint: Endpoint | None = None
        self.failure: BaseException | None = None
        self._work = dict(work)
        self._listen, self._pages = listen, pages
        self._reload = reload
        self._threads: list[threading.Thread] = []
        self._bell = _Bell()
        self._forget_threads()
        begin_again_after_fork(self)

    def _forget_threads(self) -> None:
        self._lock = threading.Lock()
        self._running: set[str] = set()

    def begin_again(self) -> None:
        """Reset in a forked child: it has no threads. Close its copy of the parent's wake-up sockets."""
        self._forget_threads()
        self._threads = []
        self._bell.close()

    def run(self) -> int:
        """Run until a signal, ``stop`` or an error, then drain; return the exit code. Call this only on the main
        thread.

        The exit code is 0, or the exit code of the error that ended the work. SIGTERM and SIGINT stop the service. A
        second signal ends the process at once, with 128 plus the signal's number.

        If a thread does not return by the drain's deadline, the process exits with 75, because such a thread could
        also block the interpreter's shutdown. If no thread has unfinished work, the process exits without waiting.
        """
        with contextlib.closing(self._bell), _Signals(self._bell, reloads=self._reload is not None) as signals:
            try:
                self.start()
            except Exception as error:  # noqa: BLE001  reported like a thread's failure
                self._fail("start", error)
            self._supervise(signals)
            missing = self._still_running()
            if missing and not self._is_without_work():
                _say(partial(self._say_missing, missing))
                os._exit(self._exit_code() or _LOST)
            if self.failure is None:
                _say(partial(_logger.info, "%s: stopped", self.name))
            if missing:
                os._exit(self._exit_code())
            self.join(_LAST_WORDS_S)
        return self._exit_code()

    def start(self) -> None:
        """Open the endpoint and start the threads; raise ConfigError if the address cannot be used."""
        if self._listen is not None:
            self.endpoint = Endpoint(*self._listen, self.health, pages=self._pages)
            _logger.info("%s: health at http://%s:%d/readyz", self.name, self.endpoint.host, self.endpoint.port)
        for name, work in self._work.items():
            self._begin(name, work)

    def stop(self) -> None:
        """Ask all threads to end, without waiting. The method takes a lock, so do not call it from a signal handler."""
        self.health.fails(_STOPPING, f"{self.name} is stopping")
        self.stopping.ask()
        self._bell.ring()

    def join(self, timeout_s: float) -> tuple[str, ...]:
        """Wait for all threads; return the names of threads that are still running. If there are none, close the
        endpoint, which answers until then."""
        deadline = Deadline.after(timeout_s)
        for thread in list(self._threads):
            thread.join(max(0.0, deadline.remaining_s()))
        missing = self._still_running()
        if not missing and self.endpoint is not None:
            self.endpoint.close()
        return missing

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
        # Drop ended reload threads, because a service may run for months.
        self._threads = [*(old for old in self._threads if old.is_alive()), thread]

    def _run_work(self, name: str, work: Work) -> None:
        try:
            work(self.stopping)
        except BaseException as error:  # noqa: BLE001  other threads must not continue without this one
            self._fail(name, error)
        finally:
            # Ring the bell last, because the woken thread checks which threads are running.
            self._running.discard(name)
            self._bell.ring()

    def _fail(self, name: str, error: BaseException) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
        if isinstance(error, TieredStoreError):
            _logger.error("%s: %s: %s", self.name, name, error)
        else:
            _logger.error("%s: %s ended by an internal error", self.name, name, exc_info=error)
        self.stop()

    def _supervise(self, signals: _Signals) -> None:
        """Wait until all threads have ended, or until the deadline for their end has passed."""
        while self._running:
            if self._running.isdisjoint(self._work) and not self.stopping.is_asked:
                # A running reload is no longer needed. Wait for its end, but at most until the deadline of the drain.
                self.stop()
            deadline = self.stopping.deadline
            if deadline is not None and (deadline.remaining_s() <= 0 or self._is_without_work()):
                return
            self._bell.wait(_LONGEST_POLL_S if deadline is None else min(_POLL_S, deadline.remaining_s()))
            if (signum := signals.take_ending()) is not None:
                self.stop()
                _say(partial(self._say_stopping, signum))
            # Only one reload runs at a time. Requests that arrive during a reload cause one more reload after it.
            if _RELOAD not in self._running and signals.take_reload() and not self.stopping.is_asked:
                self._begin_reload()

    def _begin_reload(self) -> None:
        """Reload on a separate thread, so that a slow reload does not block signals."""
        try:
            self._begin(_RELOAD, self._reload_settings)
        except RuntimeError as error:  # no thread available; a later signal may succeed
            _say(partial(_logger.error, "%s: not reloaded: %s", self.name, error))

    def _reload_settings(self, _: Stop) -> None:
        assert self._reload is not None
        try:
            self._reload()
        except Exception as error:
            is_ours = isinstance(error, TieredStoreError)
            _logger.error("%s: not reloaded: %s", self.name, error, exc_info=None if is_ours else error)  # noqa: TRY400
        else:
            _logger.info("%s: reloaded", self.name)

    def _still_running(self) -> tuple[str, ...]:
        return tuple(sorted(self._running))

    def _is_without_work(self) -> bool:
        """Return True if no running thread has work that must finish before a stop."""
        return all(is_without_work(thread) for thread in list(self._threads) if thread.is_alive())

    def _exit_code(self) -> int:
        if self.failure is None:
            return 0
        return self.failure.exit_code if isinstance(self.failure, TieredStoreError) else 1

    def _say_stopping(self, signum: signal.Signals) -> None:
        _logger.info(
            "%s: %s: stopping within %g s; a second signal ends the process at once",
            self.name, signum.name, self.stopping.drain_s,
        )  # fmt: skip

    def _say_missing(self, missing: tuple[str, ...]) -> None:
        _logger.error(
            "%s: %s did not end within %g s; its unfinished work is lost",
            self.name, " and ".join(missing), self.stopping.drain_s,
        )  # fmt: skip
        with contextlib.suppress(Exception):  # stderr may have no descriptor
            faulthandler.dump_traceback()


class _Bell:
    """Wakes a waiting thread when another thread rings the bell, or when the process gets a signal.

    The bell is a socket pair without locks. A signal handler interrupts the main thread's code, so it would wait
    forever for a lock that this code holds.
    """

    def __init__(self) -> None:
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that the system writes to at a signal."""
        return self._rung.fileno()

    def ring(self) -> None:
        """Wake the waiting thread. If no thread waits now, end the next wait at once."""
        # Ignore a full buffer, because a wake-up is already pending. Ignore a closed socket, because no thread waits.
        with contextlib.suppress(OSError):
            self._rung.send(b"\0")

    def wait(self, seconds: float) -> None:
        """Wait until another thread rings this bell; return at once if it has rung since the last wait."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        if poll.poll(max(0.0, min(seconds, _LONGEST_POLL_S)) * 1000):
            with contextlib.suppress(BlockingIOError):
                self._heard.recv(4096)

    def close(self) -> None:
        """Close the sockets."""
        self._heard.close()
        self._rung.close()


class _Signals:
    """Signal handling while a service runs."""

    def __init__(self, bell: _Bell, *, reloads: bool) -> None:
        self._bell = bell
        self._signals = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if reloads else ()))
        self._handlers = SignalHandlers()
        self._endings: list[signal.Signals] = []
        self._reloads: list[int] = []
        self._has_told = False

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals reach the main thread only: run a service there")
        even_ignored = frozenset({signal.SIGHUP})  # a service under nohup reloads too
        self._handlers.install(self._signals, self._take, self._bell.fileno(), even_ignored=even_ignored)
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.restore()

    def take_ending(self) -> signal.Signals | None:
        """Return the signal that requested the end; None if no signal arrived, or an earlier call has returned it."""
        if self._has_told or not self._endings:
            return None
        self._has_told = True
        return self._endings[0]

    def take_reload(self) -> bool:
        """Return True if a reload was requested since the last call."""
        if not self._reloads:
            return False
        # Drop all requests, even a request that arrives just now, because the reload that begins now serves all of
        # them.
        self._reloads.clear()
        return True

    def _take(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  a handler's signature
        if signum == signal.SIGHUP:
            self._reloads.append(signum)
            return
        self._endings.append(signal.Signals(signum))
        # End the process in the signal handler, because the main thread may be blocked: it waits if nobody reads the
        # log's pipe.
        if len(self._endings) > 1:
            os._exit(128 + signum)


def _say(words: Callable[[], None]) -> None:
    """Log on a separate thread, with a time limit, because the pipe of the log may be full, or a hanging thread may
    hold the log's lock.
    """
    talker = threading.Thread(target=words, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread available
        talker.start()
        talker.join(_LAST_WORDS_S)
