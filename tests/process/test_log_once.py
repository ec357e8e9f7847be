"""Warnings that are logged once."""

from __future__ import annotations

import logging

import pytest

from tieredstore.process.log_once import LogOnce


def test_a_forgotten_sentence_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    once = LogOnce(logging.getLogger(__name__), most=2)
    for sentence in "aabbaca":
        once.warn(sentence)
    assert [record.message for record in caplog.records] == ["a", "b", "c", "a"]
