"""The headers of the Messages of a stored batch, without fetching their bodies where these are large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tieredstore.backends.base import Buffer, ObjectStore
from tieredstore.errors import MessageCorrupt
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.format.messages import MessageHeader, parse_message_header
from tieredstore.pubsub.format.notifications import Notification

_MOST_HEADER: Final = 256
_WHOLE_BELOW: Final = 65_536  # bytes a Message, below which the whole object is read for its headers


def stored_headers(
    store: ObjectStore, key: str, notification: Notification
) -> Iterator[tuple[int, MessageHeader | MessageCorrupt]]:
    """Each Message's number and its header, or what is wrong with that. MessageCorrupt for a damaged index.

    By one GET of the object, or by small ones where Messages are large.
    """
    if notification.total_size <= _WHOLE_BELOW * notification.message_count:
        yield from headers_in(store.get(key), key)
        return
    index = BatchIndex(store.get(key, 0, notification.header_size), key, notification.total_size)
    for number in range(len(index)):
        start, stop = index.extent(number)
        head = store.get(key, start, min(stop, start + _MOST_HEADER))
        try:
            yield number, parse_message_header(head, index.place(number), whole=False)
        except MessageCorrupt as error:
            yield number, error


def headers_in(body: Buffer, name: str) -> Iterator[tuple[int, MessageHeader | MessageCorrupt]]:
    """The same of an object at hand."""
    for place, message in BatchIndex(body, name, len(body)).messages(body):
        try:
            yield place.number, parse_message_header(message, place)
        except MessageCorrupt as error:
            yield place.number, error
