"""A producer that writes to brokers, ours or MemQ's."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tieredstore.config import Settings
from tieredstore.errors import BrokerUnavailable, ConfigError, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import leave_to_parent
from tieredstore.pubsub.errors import DeliveryFailed
from tieredstore.pubsub.format.messages import message_checksum
from tieredstore.pubsub.format.packets import MAX_PACKET_BYTES, Code, PacketType, Request, WriteRequest
from tieredstore.pubsub.produce.batch_writer import SealedMessage
from tieredstore.pubsub.produce.brokers import VERSION, TopicBrokers
from tieredstore.pubsub.produce.outbox import Acks, OpenMessage, Outbox, PlainPacker, Sending
from tieredstore.pubsub.produce.producer import RecordProducer
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.settings import BatchClientSettings, BatchSettings

_logger: Final = logging.getLogger(__name__)

_ROOM_FOR_HEADERS: Final = 64 << 10
"""Of a packet: what stands before a Message, and what compression may add to what cannot be compressed."""

_FIRST_DELAY_S: Final = 0.05
_MOST_DELAY_S: Final = 2.0
_CLOSE_S: Final = 5.0
_REFUSED: Final = frozenset({Code.BAD_REQUEST, Code.UNAUTHORIZED})


class BrokerProducer(RecordProducer):
    """Sends records to a topic by its brokers, which ``pubsub.bootstrap`` finds.

    ``acks="all"``: a record's future is done once a broker has stored and notified it; ``"1"``: once a broker has it;
    ``"0"``: at once. Brokers do not tell where a record stands: its place is −1, −1, −1, −1. A Message that was not
    answered is sent again as it is, to another broker if there is one; several are under way at once, so that a retry
    may change their order.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        *,
        acks: Acks = "all",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        client, batches = settings.section(BatchClientSettings), settings.section(BatchSettings)
        if not client.bootstrap:
            raise ConfigError("no broker is named: set pubsub.bootstrap")
        message_bytes = min(batches.message_bytes, MAX_PACKET_BYTES - _ROOM_FOR_HEADERS)
        auditor = auditor_of(batches, topic, is_producer=True)

        def new_outbox(sending: Sending) -> Outbox:
            return Outbox(sending, PlainPacker(message_bytes), BrokerDelivery(sending, topic, client))

        super().__init__(Sending(batches, acks, auditor, message_bytes, monotonic), new_outbox)


class BrokerDelivery:
    """Seals Messages on a thread, and sends them on a loop of its own, several at once."""

    def __init__(self, sending: Sending, topic: str, client: BatchClientSettings) -> None:
        self._how = sending
        self._topic = topic
        self._client = client
        self._producer_id = str(uuid.uuid4())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []
        self._brokers: TopicBrokers | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def start(self, outbox: Outbox) -> None:
        """Have the threads run, if they do not yet."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            leave_to_parent(self._loop)
            self._threads = [
                threading.Thread(target=self._run_loop, args=(self._loop,), name="tieredstore-pubsub-client"),
                threading.Thread(target=self._seal_all, args=(outbox, self._loop), name="tieredstore-pubsub-messages"),
            ]
            for thread in self._threads:
                thread.daemon = True
                thread.start()

    def stop(self) -> None:
        """End the loop, and the connections."""
        loop, threads = self._loop, self._threads
        if loop is not None and not loop.is_closed():
            threads[1].join(_CLOSE_S)
            loop.call_soon_threadsafe(loop.stop)
            threads[0].join(_CLOSE_S)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            if self._brokers is not None:
                self._brokers.close()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, asyncio.sleep(0), return_exceptions=True))
            loop.run_until_complete(asyncio.sleep(0))  # connections end in the step after they are told to
            loop.close()

    # --- on the thread of Messages ---

    def _seal_all(self, outbox: Outbox, loop: asyncio.AbstractEventLoop) -> None:
        while (message := outbox.next(None, self._client.linger_ms / 1000)) is not None:
            if isinstance(message, OpenMessage):
                sealed = message.seal(self._how.compression)
                deadline = Deadline.after(self._how.settings.delivery_timeout_ms / 1000)
                loop.call_soon_threadsafe(self._begin_sending, loop, self._deliver(outbox, message, sealed, deadline))

    # --- on the loop ---

    def _begin_sending(self, loop: asyncio.AbstractEventLoop, delivery: Coroutine[Any, Any, None]) -> None:
        task = loop.create_task(delivery)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, outbox: Outbox, message: OpenMessage, sealed: SealedMessage, deadline: Deadline) -> None:
        try:
            await self._send(sealed, deadline)
        except DeliveryFailed as failure:
            outbox.fail([message], failure)
        except (TieredStoreError, asyncio.CancelledError) as error:
            why = str(error) or "the producer was closed before it was delivered"
            outbox.fail([message], DeliveryFailed(why, maybe_stored=True))
        except Exception as error:  # whatever it is, nobody may wait for ever
            _logger.exception("a Message was not sent")
            outbox.fail([message], DeliveryFailed(f"an error of our own: {error!r:.200}", maybe_stored=True))
        else:
            outbox.settle([message], None)

    async def _send(self, sealed: SealedMessage, deadline: Deadline) -> None:
        """Send a Message, and again, the same one, until a broker has answered that it has it."""
        assert sealed.request is not None
        data = bytes(sealed.stored)
        write = WriteRequest(self._topic, message_checksum(data), data, self._how.acks != "all", self._producer_id)
        request = Request(VERSION, sealed.request.request_id, write)
        is_unclear, delay_s = False, _FIRST_DELAY_S
        while True:
            why, was_sent, is_final = await self._try(request, deadline)
            if why is None:
                return
            is_unclear |= was_sent
            if is_final or deadline.remaining_s() <= delay_s:
                raise DeliveryFailed(f"a Message was not taken: {why}", maybe_stored=is_unclear)
            await asyncio.sleep(delay_s * (0.5 + random.random() / 2))  # noqa: S311  jitter
            delay_s = min(2 * delay_s, _MOST_DELAY_S)

    async def _try(self, request: Request, deadline: Deadline) -> tuple[str | None, bool, bool]:
        """Why it was not taken (None: it was), whether it may have been all the same, and whether that is final."""
        if self._brokers is None:
            self._brokers = TopicBrokers(self._topic, self._client)
        try:
            link = await self._brokers.link()
        except BrokerUnavailable as error:
            return str(error), False, False
        except TieredStoreError as error:
            return str(error), False, True
        timeout_s = min(self._client.request_timeout_ms / 1000, max(0.1, deadline.remaining_s()))
        try:
            response = await link.ask(request, PacketType.WRITE, timeout_s)
        except BrokerUnavailable as error:
            self._brokers.left(link, str(error))
            return str(error), True, False
        if response.code is Code.OK:
            self._brokers.answered(link.place)
            return None, True, True
        why = f"broker {link.place[0]}:{link.place[1]} answers {response.code.value}: {response.error:.200}"
        if response.code in _REFUSED:
            return why, False, True
        self._brokers.stale()
        # A failure of its store may have left the Message there.
        return why, response.code not in {Code.REDIRECT, Code.NOT_FOUND, Code.SERVICE_UNAVAILABLE}, False
