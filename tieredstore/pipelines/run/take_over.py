"""Generations of a pipeline: one that ends, and another that goes on where it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError, Fenced
from tieredstore.pipelines.filing.naming import Naming
from tieredstore.pipelines.log.entries import WrittenWindow
from tieredstore.pipelines.run.driver import Driver, Rewrite, RewriteAside, refuse_closed

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.config.settings import PipelineSettings
    from tieredstore.pipelines.log.commit_log import LogState


def take_over(
    own: PipelineSettings,
    driver: Driver,
    store: ObjectStore,
    generation: int,
    topics: Sequence[str],
    rewrite: Callable[[Naming], tuple[Rewrite, RewriteAside]],
) -> None:
    """Have the driver's generation, which has not begun, go on where ``generation`` ends, and end that one.

    What that one has committed is published first; whoever runs it is fenced. Repeated after a kill it completes, and
    does nothing once it is done. ConfigError where there is nothing to take over, or somebody else has.
    """
    state = driver.log.read()
    if state.number >= 0:
        if state.other != generation:
            raise ConfigError(
                f"generation {own.generation} has begun without taking over generation {generation}: leave --take-over "
                "out, or give another secor.generation"
            )
        return
    driver.naming.claim(store)
    driver.refuse_strangers(topics)
    positions = _sealed(own, driver, store, generation, topics, rewrite).positions
    windows = [
        WrittenWindow(
            topic, one.topic_id, partition, one.next_offset, one.next_offset, 0, 0, 0, (), leader_epoch=one.leader_epoch
        )
        for (topic, partition), one in sorted(positions.items())
    ]
    driver.log.append("take-over", driver.fingerprint, windows, other=generation)


def _sealed(
    own: PipelineSettings,
    driver: Driver,
    store: ObjectStore,
    generation: int,
    topics: Sequence[str],
    rewrite: Callable[[Naming], tuple[Rewrite, RewriteAside]],
) -> LogState:
    """The end of the generation that went before."""
    before = Driver(
        store,
        own.model_copy(update={"generation": generation}),
        replace(driver.naming, generation=generation),
        driver.finalizer.tables,
        driver.table,
    )
    state = before.log.read()
    if state.number < 0:
        raise ConfigError(f"generation {generation} of {own.name} has no commit log: there is nothing to take over")
    if _is_sealed_for(state, own):
        return state
    refuse_closed(state, generation)
    window_again, before.rewrite_aside = rewrite(before.naming)
    try:
        before.begin(topics, window_again)
        before.log.append("seal", before.fingerprint, other=own.generation)
    except (ConfigError, Fenced):
        # Another process that does the same may have been faster: the log of the new generation fences one of the two.
        if not _is_sealed_for(before.log.read(), own):
            raise
    return before.log.state


def _is_sealed_for(state: LogState, own: PipelineSettings) -> bool:
    return state.closed == "seal" and state.other == own.generation
