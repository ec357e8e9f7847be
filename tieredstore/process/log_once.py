"""Warnings that a long-running process logs only once, even if it finds their cause again and again."""

from __future__ import annotations

import logging


class LogOnce:
    """Logs each sentence once. It remembers ``most`` sentences, because a process may run for months; a forgotten
    sentence is logged again.

    If two threads warn at the same moment, a sentence may be logged twice. This is harmless.
    """

    def __init__(self, logger: logging.Logger, most: int = 10_000) -> None:
        self._logger = logger
        self._most = most
        self._said: set[str] = set()

    def warn(self, sentence: str) -> None:
        """Log a warning unless it was logged before."""
        if self.is_first(sentence):
            self._logger.warning("%s", sentence)

    def is_first(self, sentence: str) -> bool:
        """Return True only for the first call with this sentence."""
        if sentence in self._said:
            return False
        if len(self._said) >= self._most:
            self._said.clear()
        self._said.add(sentence)
        return True
