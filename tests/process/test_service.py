"""A service's life in a separate process: signals, draining, reloading, and threads that do not return."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
from dataclasses import dataclass
from typing import Final

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.service_process import fetched, running

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Ending:
    """A program, its expected end, and signals, each sent after a number of matching lines."""

    program: str
    code: int
    signals: tuple[tuple[str, int, signal.Signals | None], ...] = ()
    lines: tuple[str, ...] = ()
    """Texts that the program's output must contain. The output must not contain ``never``."""
    never: str = "did not end"


TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP

LOG_IS_STUCK: Final = """
    handler = logging.getLogger().handlers[0]
    def stuck(stop):
        with handler.lock:
            say("working")
            threading.Event().wait()
    sys.exit(Service("tester", {"stuck": stuck, "loop": loop}, drain_s=DRAIN_S).run())
"""
TWO_LOOPS: Final = "sys.exit(Service('tester', {'one': loop, 'two': loop}).run())"
SLOW: Final = """
    def slow(stop):
        say("working")
        stop.wait(60)
        say("draining")
        threading.Event().wait()
    sys.exit(Service("tester", {"slow": slow}).run())
"""
NOTHING_UNDER_WAY: Final = """
    from tieredstore.process.stopping import nothing_under_way
    def waiting(stop):
        with nothing_under_way():
            with nothing_under_way():
                pass
            say("waiting")
            threading.Event().wait()
    def slow(stop):
        with nothing_under_way():
            pass
        loop(stop)
        time.sleep(0.3)
        say("all of it")
    sys.exit(Service("tester", {"waiting": waiting, "slow": slow}, drain_s=3600).run())
"""

ENDINGS: Final = {
    **{
        f"{signum.name} drains": Ending(
            TWO_LOOPS, 0, (("working", 2, signum),),
            (
                "drained", f"tester: {signum.name}: stopping within 30 s; a second signal ends the process at once",
                "tester: stopped",
            ),
        )
        for signum in (TERM, INT)
    },
    **{
        f"a second signal, {signum.name}, ends the process at once": Ending(
            SLOW, 128 + signum, (("working", 1, TERM), ("draining", 1, signum)), never="lost"
        )
        for signum in (TERM, INT)
    },
    # Send the second signal after the other thread has drained. By then the first was handled, so they cannot merge.
    "a second signal ends the process although a thread holds the log's lock": Ending(
        LOG_IS_STUCK.replace("DRAIN_S", "3600"), 143, (("working", 2, TERM), ("drained", 1, TERM))
    ),
    "a log whose lock is held delays neither the drain nor its end": Ending(
        LOG_IS_STUCK.replace("DRAIN_S", "1"), 75, (("working", 2, TERM),), ("drained",)
    ),
    "a thread that does not end in time is named": Ending(
        """
        def stuck(stop):
            say("working")
            threading.Event().wait()
        sys.exit(Service("tester", {"loop": loop, "stuck": stuck}, drain_s=0.5).run())
        """,
        75, (("working", 2, TERM),), ("tester: stuck did not end within 0.5 s; its unfinished work is lost",),
        never="loop did not",
    ),
    **{
        f"{signum.name} does not wait for threads that have nothing under way": Ending(
            NOTHING_UNDER_WAY, 0, (("waiting", 1, None), ("working", 1, signum)), ("all of it",)
        )
        for signum in (TERM, INT)
    },
    "threads that would delay an interpreter's end do not delay the service's end": Ending(
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        def stuck(stop):
            pool.submit(threading.Event().wait).result()
        sys.exit(Service("tester", {"stuck": stuck, "loop": loop}, drain_s=0.1).run())
        """,
        75, (("working", 1, TERM),), never="Traceback",
    ),
    "the error of one thread stops all threads and gives the exit code": Ending(
        """
        def denied(stop):
            raise AccessDeniedError("the bucket says no")
        sys.exit(Service("tester", {"loop": loop, "denied": denied}).run())
        """,
        6, lines=("tester: denied: the bucket says no", "drained"), never="Traceback",
    ),
    "an error of another class than the library's is logged with its traceback": Ending(
        """
        def broken(stop):
            raise ValueError("a bug")
        sys.exit(Service("tester", {"loop": loop, "broken": broken}).run())
        """,
        1, lines=("ValueError: a bug", "drained"),
    ),
    "work that ends by itself ends the service": Ending(
        "sys.exit(Service('tester', {'quick': lambda stop: say('done')}).run())", 0, lines=("done",)
    ),
    "stop from a thread of its own drains": Ending(
        """
        service = Service("tester", {"loop": loop, "other": lambda stop: service.stop()})
        sys.exit(service.run())
        """,
        0, lines=("drained",),
    ),
    "a reload that hangs holds up no signal": Ending(
        """
        def reload():
            say("reloading")
            threading.Event().wait()
        sys.exit(Service("tester", {"loop": loop}, reload=reload, drain_s=0.5).run())
        """,
        75, (("working", 1, HUP), ("reloading", 1, TERM)),
        ("tester: reload did not end within 0.5 s; its unfinished work is lost",), never="loop did not",
    ),
    "a reload that hangs does not outlive the work": Ending(
        """
        reloading = threading.Event()
        def reload():
            reloading.set()
            threading.Event().wait()
        def work(stop):
            say("working")
            reloading.wait(120)
        sys.exit(Service("tester", {"work": work}, reload=reload, drain_s=0.5).run())
        """,
        75, (("working", 1, HUP),), ("tester: reload did not end within 0.5 s; its unfinished work is lost",),
        never="work did not",
    ),
    "without a reload function, the system handles a hangup": Ending(
        """
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run where a hangup is ignored
        sys.exit(Service("tester", {"loop": loop}).run())
        """,
        -HUP, (("working", 1, HUP),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDINGS)
def test_how_it_ends(name: str) -> None:
    ending = ENDINGS[name]
    with running(ending.program) as run:
        for expression, times, signum in ending.signals:
            run.line(expression, times)
            if signum is not None:
                run.send(signum)
        assert run.code() == ending.code
        assert set(ending.lines) <= set(run.lines), run.lines
        assert not any(ending.never in line for line in run.lines), run.lines
        if "is named" in name:
            assert any("in stuck" in line for line in run.lines), "the log has no traceback of the stuck thread"


def test_a_hangup_reloads_one_at_a_time_and_an_error_of_it_leaves_all_as_it_is() -> None:
    with running("""
        count = 0
        def reload():
            global count
            count += 1
            say(f"reloading {count}")
            sys.stdin.readline()
            if count == 2:
                raise ConfigError("chunk.size is not a number")
            say(f"reloaded {count}")
        signal.signal(signal.SIGUSR1, lambda *_: say("heard"))
        sys.exit(Service("tester", {"loop": loop}, reload=reload).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGHUP)
        run.line("reloading 1")
        for heard in range(1, 6):  # all these signals come during a reload, and one more reload answers them
            run.send(signal.SIGHUP)
            run.send(signal.SIGUSR1)  # its handler runs after the first handler
            run.line("heard", heard)
        run.tell()
        run.line("reloading 2")
        run.tell()
        run.line("tester: not reloaded: chunk.size is not a number")
        run.send(signal.SIGHUP)
        run.line("reloading 3")
        run.tell()
        run.line("reloaded 3")
        run.send(signal.SIGTERM)
        assert run.code() == 0
        assert run.lines.count("tester: reloaded") == 2
        assert "reloading 4" not in run.lines


def test_signals_that_were_ignored_stay_ignored() -> None:
    with running("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(Service("tester", {"loop": loop}, reload=lambda: None).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGINT)
        run.send(signal.SIGINT)
        run.send(signal.SIGHUP)
        run.line("tester: reloaded")  # so SIGINT has not ended the service
        run.send(signal.SIGTERM)
        assert run.code() == 0


def test_signals_are_as_before_when_it_has_ended() -> None:
    run_fresh("""
        import signal
        from tieredstore.process.service import Service

        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
        assert Service("tester", {"none": lambda stop: None}, reload=print).run() == 0
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before
        assert signal.set_wakeup_fd(-1) == -1
    """)


def test_many_signals_at_any_moment_end_it_by_one_of_the_two_ways() -> None:
    for delay_s in (0.0, 0.001, 0.003, 0.01, 0.03):
        with running("sys.exit(Service('tester', {'loop': loop}, reload=lambda: None).run())") as run:
            run.line("working")
            for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGHUP):
                if run.process.poll() is None:
                    run.send(signum)
                time.sleep(delay_s)
            # Of two pending signals Python takes SIGINT first. After the service's end both have their old handlers.
            assert run.code() in {0, 130, 143, -signal.SIGINT, -signal.SIGHUP}


def test_a_forked_child_is_no_service_and_wakes_none() -> None:
    with running("""
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        def child():
            say(f"child {os.getpid()}")
            threading.Event().wait()
        def forking(stop):
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join()
            say(f"child ended {process.exitcode}")
            loop(stop)
        sys.exit(Service("tester", {"forking": forking}, listen=("127.0.0.1", 0), reload=print).run())
    """) as run:
        child = int(run.line("child [0-9]").split()[1])
        os.kill(child, signal.SIGTERM)
        run.line(f"child ended {-signal.SIGTERM}")
        run.line("working")
        run.send(signal.SIGHUP)
        run.line("tester: reloaded")
        assert fetched(run.port(), "/readyz")[0] == 200
        run.send(signal.SIGTERM)
        assert run.code() == 0


def test_readiness_follows_the_conditions_and_the_drain() -> None:
    with running("""
        health = Health({"store": "the store was not asked yet", "leader": "no partition is led yet"})
        def work(stop):
            say("working")
            sys.stdin.readline()
            health.holds("store")
            health.holds("leader")
            say("ready")
            stop.wait(60)
            say("draining")
            sys.stdin.readline()
        sys.exit(Service("tester", {"work": work}, health=health, listen=("127.0.0.1", 0)).run())
    """) as run:
        run.line("working")
        port = run.port()
        status, text = fetched(port, "/readyz")
        reasons = {"store": "the store was not asked yet", "leader": "no partition is led yet"}
        assert (status, json.loads(text)) == (503, {"ready": False, "reasons": reasons})
        assert fetched(port, "/healthz")[0] == 200
        run.tell()
        run.line("ready$")
        assert fetched(port, "/readyz") == (200, '{\n  "ready": true,\n  "reasons": {}\n}\n')
        run.send(signal.SIGTERM)
        run.line("draining")
        status, text = fetched(port, "/readyz")
        assert (status, json.loads(text)["reasons"]) == (503, {"stopping": "tester is stopping"})
        assert fetched(port, "/healthz")[0] == 200
        run.tell()
        assert run.code() == 0
        with pytest.raises(urllib.error.URLError):
            fetched(port, "/healthz")


def test_metrics_are_scraped_and_health_is_told() -> None:
    with running("""
        from tieredstore.metrics.counting import RETRIES
        RETRIES.add(3, "transient")
        sys.exit(Service("tester", {"loop": loop}, listen=("127.0.0.1", 0)).run())
    """) as run:
        run.line("working")
        port = run.port()
        status, text = fetched(port, "/metrics")
        assert status == 200
        assert 'tieredstore_store_retries_total{kind="transient"} 3.0' in text.splitlines()
        status, text = fetched(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert text.endswith("# EOF\n")
        assert fetched(port, "/healthz") == (200, '{\n  "alive": true,\n  "reasons": {}\n}\n')
        run.send(signal.SIGTERM)
        assert run.code() == 0


def test_a_port_that_is_taken_is_one_sentence_and_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(f"sys.exit(Service('tester', {{'loop': loop}}, listen=('127.0.0.1', {port})).run())") as run:
            assert run.code() == 2
            (line,) = run.lines
            assert line.startswith(f"tester: start: cannot listen on 127.0.0.1:{port} for /metrics and /readyz: ")
            assert line.endswith("Address already in use; choose another address or port")
