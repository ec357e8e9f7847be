"""Fixture for group members whose heartbeats the test sends."""

from __future__ import annotations

import pytest

from tieredstore.pubsub.queue.groups import StoreGroup


@pytest.fixture
def beats_by_hand(monkeypatch: pytest.MonkeyPatch, inline_threads: None) -> None:
    """Let tests send heartbeats themselves, because a member's own thread would use the machine's clock.

    Patch the thread's private method, because the thread is the last place that has no simulated clock: a member that
    a test "kills" is only abandoned, and its thread would send heartbeats for as long as the process lives.
    """
    del inline_threads

    def beat(group: StoreGroup) -> None:
        assert group.member

    monkeypatch.setattr(StoreGroup, "_beat", beat)
