"""Frames of threads are made without a garbage collection, in which CPython 3.11 may stand still for ever."""

from __future__ import annotations

import gc
import threading
from types import FrameType

import pytest

from tests.support import thread_frames


def test_no_collection_begins_while_frames_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[str] = []
    during: list[str] = []

    def called(phase: str, _: object) -> None:
        phases.append(phase)

    def allocating() -> dict[int, FrameType]:
        phases.clear()
        kept = [list(range(3)) for _ in range(100)]
        during.extend(phases)
        kept.clear()
        return {}

    monkeypatch.setattr(thread_frames, "_current_frames", allocating)
    threshold = gc.get_threshold()
    gc.callbacks.append(called)
    gc.set_threshold(1)
    try:
        allocating()
        assert during
        during.clear()
        thread_frames.thread_frames()
        assert not during
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(called)
    assert gc.isenabled()


def test_it_has_all_threads() -> None:
    assert threading.get_ident() in thread_frames.thread_frames()
