"""A service's life, in a process of its own: signals, draining, reloading, and threads that do not come back."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.service_process import fetched, running

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_end_is_0(signum: signal.Signals) -> None:
    with running("sys.exit(Service('tester', {'one': loop, 'two': loop}).run())") as run:
        run.line("working", 2)
        run.send(signum)
        assert run.code() == 0
        assert run.lines.count("drained") == 2
        assert f"tester: {signum.name}: stopping, for 30 s at most; a second one ends it at once" in run.lines


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(signum: signal.Signals, code: int) -> None:
    with running("""
        def slow(stop):
            say("working")
            stop.wait(60)
            say("draining")
            time.sleep(60)
        sys.exit(Service("tester", {"slow": slow}).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGTERM)
        run.line("draining")
        run.send(signum)
        assert run.code() == code


def test_a_second_signal_ends_it_though_nobody_reads_its_log_and_a_thread_holds_the_log_s_lock() -> None:
    with running("""
        handler = logging.getLogger().handlers[0]
        def stuck(stop):
            with handler.lock:
                say("working")
                time.sleep(60)
        sys.exit(Service("tester", {"stuck": stuck, "loop": loop}).run())
    """) as run:
        run.line("working", 2)
        run.send(signal.SIGTERM)
        run.line("drained")  # so the first has been heard: two that are pending would be one
        assert run.process.poll() is None
        run.send(signal.SIGTERM)
        assert run.code() == 143


def test_a_log_that_nobody_can_write_to_holds_up_neither_the_drain_nor_its_end() -> None:
    with running("""
        handler = logging.getLogger().handlers[0]
        def stuck(stop):
            with handler.lock:
                say("working")
                time.sleep(60)
        sys.exit(Service("tester", {"stuck": stuck, "loop": loop}, drain_s=3).run())
    """) as run:
        run.line("working", 2)
        run.send(signal.SIGTERM)
        assert run.code() == 75
        assert "drained" in run.lines


def test_a_thread_that_does_not_come_back_in_time_is_named_and_the_end_is_75() -> None:
    with running("""
        def stuck(stop):
            say("working")
            threading.Event().wait()
        sys.exit(Service("tester", {"loop": loop, "stuck": stuck}, drain_s=2).run())
    """) as run:
        run.line("working", 2)
        started = time.monotonic()
        run.send(signal.SIGTERM)
        assert run.code() == 75
        assert 1.9 < time.monotonic() - started < 60
        assert "tester: stuck did not end within 2 s; what was under way there is lost" in run.lines
        assert any("in stuck" in line for line in run.lines), "where it stood is not told"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_threads_that_have_nothing_under_way_are_not_waited_for(signum: signal.Signals) -> None:
    with running("""
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
            time.sleep(1)
            say("all of it")
        sys.exit(Service("tester", {"waiting": waiting, "slow": slow}, drain_s=3600).run())
    """) as run:
        run.line("waiting")
        run.line("working")
        run.send(signum)
        assert run.code() == 0
        assert "all of it" in run.lines
        assert not any("did not end" in line for line in run.lines)


def test_threads_that_hold_up_an_interpreter_s_end_do_not_hold_up_this_one_s() -> None:
    with running("""
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        def stuck(stop):
            pool.submit(threading.Event().wait).result()
        sys.exit(Service("tester", {"stuck": stuck, "loop": loop}, drain_s=0.1).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGTERM)
        assert run.code() == 75


def test_the_error_of_one_thread_stops_all_and_its_code_is_the_end() -> None:
    with running("""
        def denied(stop):
            raise AccessDenied("the bucket says no")
        sys.exit(Service("tester", {"loop": loop, "denied": denied}).run())
    """) as run:
        assert run.code() == 6
        assert "tester: denied: the bucket says no" in run.lines
        assert "drained" in run.lines
        assert not any("Traceback" in line for line in run.lines)


def test_an_error_that_is_none_of_the_library_s_is_told_with_its_traceback() -> None:
    with running("""
        def broken(stop):
            raise ValueError("a bug")
        sys.exit(Service("tester", {"loop": loop, "broken": broken}).run())
    """) as run:
        assert run.code() == 1
        run.line("ValueError: a bug")
        assert "drained" in run.lines


def test_work_that_ends_by_itself_ends_the_service() -> None:
    with running("sys.exit(Service('tester', {'quick': lambda stop: say('done')}).run())") as run:
        assert run.code() == 0
        assert "done" in run.lines


def test_stop_from_a_thread_of_its_own_drains() -> None:
    with running("""
        service = Service("tester", {"loop": loop, "other": lambda stop: (time.sleep(0.2), service.stop())})
        sys.exit(service.run())
    """) as run:
        assert run.code() == 0
        assert "drained" in run.lines


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
        for heard in range(1, 6):  # while one is under way: one more answers them all
            run.send(signal.SIGHUP)
            run.send(signal.SIGUSR1)  # whose handler runs after that of the other
            run.line("heard", heard)
        time.sleep(0.3)
        run.tell()
        run.line("reloading 2")
        run.tell()
        run.line("tester: not reloaded: chunk.size is not a number")
        time.sleep(0.3)
        run.send(signal.SIGHUP)
        run.line("reloading 3")
        run.tell()
        run.line("reloaded 3")
        run.send(signal.SIGTERM)
        assert run.code() == 0
        assert run.lines.count("tester: reloaded") == 2
        assert "reloading 4" not in run.lines


def test_a_reload_that_hangs_holds_up_no_signal() -> None:
    with running("""
        def reload():
            say("reloading")
            threading.Event().wait()
        sys.exit(Service("tester", {"loop": loop}, reload=reload, drain_s=2).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGHUP)
        run.line("reloading")
        run.send(signal.SIGTERM)
        assert run.code() == 75
        assert "tester: reload did not end within 2 s; what was under way there is lost" in run.lines


def test_a_reload_that_hangs_does_not_outlive_the_work() -> None:
    with running("""
        reloading = threading.Event()
        def reload():
            say("reloading")
            reloading.set()
            time.sleep(60)
        def work(stop):
            say("working")
            reloading.wait(120)
        sys.exit(Service("tester", {"work": work}, reload=reload, drain_s=2).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGHUP)
        run.line("reloading")
        assert run.code() == 75
        assert "tester: reload did not end within 2 s; what was under way there is lost" in run.lines


def test_without_anything_to_reload_a_hangup_is_left_to_the_system() -> None:
    with running("""
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run where a hangup is ignored
        sys.exit(Service("tester", {"loop": loop}).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGHUP)
        assert run.code() == -signal.SIGHUP


def test_signals_that_were_ignored_stay_ignored() -> None:
    with running("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(Service("tester", {"loop": loop}).run())
    """) as run:
        run.line("working")
        run.send(signal.SIGINT)
        run.send(signal.SIGINT)
        time.sleep(0.3)
        assert run.process.poll() is None
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
            # Of two that are pending Python takes SIGINT first; behind the end of the service both are as before.
            assert run.code() in {0, 130, 143, -signal.SIGINT, -signal.SIGHUP}


def test_a_forked_child_is_no_service_and_wakes_none() -> None:
    with running("""
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        def child():
            say(f"child {os.getpid()}")
            time.sleep(60)
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
        time.sleep(0.2)
        assert run.process.poll() is None
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
        from tieredstore.metrics import RETRIES
        RETRIES.labels("transient").inc(3)
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
            assert line.startswith(f"tester: start: nothing can listen on 127.0.0.1:{port} for /metrics and /readyz: ")
            assert line.endswith("Address already in use; choose another address or port")
