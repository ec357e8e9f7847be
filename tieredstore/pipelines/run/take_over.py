"""A generation that goes on where another one ends."""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.errors import ConfigError, Fenced
from tieredstore.pipelines.log.commit_log import Life, LogState
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.run.driver import Driver


def take_over(driver: Driver, number: int, topics: Sequence[str]) -> None:
    """Have the driver's generation, which has not begun, go on where generation ``number`` ends, and end that one.

    What that one has committed is published first; whoever runs it is fenced. Repeated after a kill it completes, and
    does nothing once it is done. ConfigError where there is nothing to take over, or somebody else has.
    """
    own = driver.generation
    state = own.log.read()
    if state.life is not Life.FREE:
        if state.other != number:
            raise ConfigError(
                f"generation {own.number} has begun without taking over generation {number}: leave --take-over "
                "out, or give another secor.generation"
            )
        return
    own.claim()
    own.refuse_strangers(topics)
    positions = _sealed(driver, number, topics).positions
    windows = [
        Window(topic, one.topic_id, partition, one.next_offset, one.next_offset, one.leader_epoch).without_records()
        for (topic, partition), one in sorted(positions.items())
    ]
    own.log.append("take-over", own.fingerprint, windows, other=number)


def _sealed(driver: Driver, number: int, topics: Sequence[str]) -> LogState:
    """The end of the generation that went before."""
    before = driver.of_generation(number)
    log, own = before.generation.log, driver.generation

    def is_done(state: LogState) -> bool:
        return state.life is Life.SEALED and state.other == own.number

    state = log.read()
    if state.life is Life.FREE:
        raise ConfigError(f"generation {number} of {own.own.name} has no commit log: there is nothing to take over")
    if is_done(state):
        return state
    before.generation.refuse_ended()
    try:
        before.begin(topics)
        log.append("seal", before.generation.fingerprint, other=own.number)
    except (ConfigError, Fenced):
        # Another process that does the same may have been faster: the log of the new generation fences one of the two.
        if not is_done(log.read()):
            raise
    return log.state
