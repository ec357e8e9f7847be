"""The processors of a broker's topics: each begun when somebody first writes to its topic, which others wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.broker.counts import BrokerCounts
from tieredstore.pubsub.broker.processor import BatchLimits, TopicProcessor
from tieredstore.pubsub.governor.directory import Assignment, Directory, KnownTopic, own_error
from tieredstore.pubsub.produce.batch_writer import BatchWriter

_logger: Final = logging.getLogger(__name__)

Waiting = Callable[[TopicProcessor | None, TieredStoreError | None], None]
"""Goes on with a topic's processor: None if the broker has none, with the error that kept it from having one."""

_UPLOADS_A_SETTING: Final = 4


class TopicProcessors:
    """Used on the broker's loop alone; topics are looked up, and queues asked for, on its threads."""

    def __init__(
        self,
        uploads: int,
        batch_by: str,
        *,
        directory: Directory,
        assignment: Assignment,
        give_back: Callable[[int], None],
        counts: BrokerCounts,
        look: Callable[[str], Coroutine[Any, Any, KnownTopic | None]],
        lookups: ThreadPool,
    ) -> None:
        """``look`` asks the directory, on a thread; ``give_back`` frees room that a Message took."""
        self._batch_by = batch_by
        self._directory = directory
        self._assignment = assignment
        self._give_back = give_back
        self._counts = counts
        self._look = look
        self._lookups = lookups
        self._uploads = ThreadPool(_UPLOADS_A_SETTING * uploads, "tieredstore-broker-upload")
        self._processors: dict[str, TopicProcessor] = {}
        self._preparing: dict[str, list[Waiting]] = {}

    def __len__(self) -> int:
        return len(self._processors)

    def is_ready(self, name: str) -> bool:
        """Whether :meth:`ask` goes on at once."""
        return name in self._processors or self._has_none(name)

    def _has_none(self, name: str) -> bool:
        is_elsewhere = self._directory.known(name) is not None and not self._assignment.serves(name)
        return is_elsewhere or (name not in self._preparing and self._directory.is_unknown(name))

    def ask(self, name: str, then: Waiting, begin: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Go on with the topic's processor, None if this broker has none; at once where it is known. ``begin`` has a
        coroutine run on the loop for whoever asks."""
        if self._directory.known(name) is not None and not self._assignment.serves(name):
            then(None, None)
        elif (processor := self._processors.get(name)) is not None:
            then(processor, None)
        elif name in self._preparing:
            self._preparing[name].append(then)
        elif self._directory.is_unknown(name):
            then(None, None)
        else:
            self._preparing[name] = [then]
            begin(self._prepare(name))

    def seal_all(self) -> None:
        """Have everything written now, full or not."""
        for processor in self._processors.values():
            processor.seal_all()

    async def drained(self) -> None:
        """Returns when all that they hold is stored, or has failed, and was answered."""
        await asyncio.gather(*(processor.drained() for processor in self._processors.values()))

    def close(self) -> None:
        """Begin no more writes."""
        for processor in self._processors.values():
            processor.close()
        self._uploads.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        processor, failure = None, None
        try:
            known = self._directory.known(name) or await loop.run_in_executor(self._lookups, self._directory.look, name)
            if known is not None and self._assignment.serves(name):
                processor = await loop.run_in_executor(self._lookups, self._processor, known, loop)
                self._processors[name] = processor
        except TieredStoreError as error:
            failure = error
        except Exception as error:
            _logger.exception("topic %r has no processor", name)
            failure = own_error(error)
        for then in self._preparing.pop(name):
            then(processor, failure)

    def _processor(self, known: KnownTopic, loop: asyncio.AbstractEventLoop) -> TopicProcessor:
        """On a thread: the queue of a topic may have to be asked for."""
        topic, topics = known.topic, known.topics
        if topic is None or topics is None:
            raise ConfigError(f"this broker cannot store topic {known.name}: see its log")
        pubsub = topics.batches
        limits = BatchLimits(
            pubsub.batch_bytes, pubsub.batch_ms / 1000, pubsub.batch_messages, pubsub.delivery_timeout_ms / 1000
        )
        return TopicProcessor(
            topic.name,
            BatchWriter(topics, topic, topics.queue(topic)),
            limits,
            loop=loop,
            uploads=self._uploads,
            give_back=self._give_back,
            pool=topics.memory,
            counts=self._counts,
            partitions=topic.partitions if self._batch_by == "producer" else None,
        )
