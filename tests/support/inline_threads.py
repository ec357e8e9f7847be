"""Pools without threads: each task runs immediately in ``submit``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from tieredstore.process.thread_pool import ThreadPool


@pytest.fixture
def inline_threads() -> Generator[None]:
    """Run tasks of pools in ``submit``, for tests of thousands of small tasks, because threads would cost more time."""

    def submit(pool: ThreadPool, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        run_task(future, partial(fn, *args, **kwargs))
        return future

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ThreadPool, "submit", submit)
        yield


def run_task(future: Future[Any], work: Callable[[], Any]) -> None:
    """Run the work of a future, unless it was cancelled."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  a future carries any error
            future.set_exception(error)
