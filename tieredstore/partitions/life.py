"""Chooses which topic id to read if a topic was re-created. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tieredstore.model import Uuid

if TYPE_CHECKING:
    from tieredstore.catalog.catalog import Catalog, Incarnation
    from tieredstore.remote.layout import KeyLayout


class Life(NamedTuple):
    """The incarnation of a topic to read. ``stored`` is this incarnation in the bucket, or None if the bucket lacks it.
    ``is_live`` is True if the broker has this incarnation.

    If the bucket lacks the broker's topic id, ``others`` are the ids that the bucket has for this topic.
    """

    stored: Incarnation | None
    is_live: bool
    others: tuple[Uuid, ...] = ()


def choose_life(
    catalog: Catalog, layout: KeyLayout, topic: str, *, live: Uuid | None = None, wanted: Uuid | None = None
) -> Life:
    """Choose the incarnation to read: by default, the broker's. ``live`` is the broker's topic id, ``wanted`` the
    requested id.

    If the broker's id is unknown or not the wanted id, choose from the bucket. Choose the wanted incarnation. If no id
    is wanted, choose the bucket's only incarnation.

    Raise ConfigError if no id is wanted and the bucket has several incarnations. Raise ResourceNotFoundError if the
    bucket lacks the wanted id.
    """
    if live is None or contradict(layout, topic, live, wanted):
        return Life(catalog.incarnation(topic, wanted) if topic in catalog.topics() else None, is_live=False)
    lives = catalog.incarnations(topic) if topic in catalog.topics() else ()
    for life in lives:
        if not contradict(layout, topic, live, life.topic_id):
            return Life(life, is_live=True)
    return Life(None, is_live=True, others=tuple(life.topic_id for life in lives))


def others_than(catalog: Catalog, read: Incarnation, choose: str) -> list[str]:
    """Return a list with one sentence, which names the topic's incarnations besides ``read``. If there are none, the
    list is empty.

    ``choose`` tells the user how to read another incarnation.
    """
    topic = read.topic
    others = ", ".join(str(one.topic_id) for one in catalog.incarnations(topic) if one.topic_id != read.topic_id)
    if not others:
        return []
    return [f"topic {topic} was created again: {read.topic_id} is read, and the bucket has {others} too ({choose})"]


def contradict(layout: KeyLayout, topic: str, one: Uuid | None, other: Uuid | None) -> bool:
    """Return True if two ids certainly belong to different incarnations of a topic. They may be the same incarnation if
    one is None or was derived from the topic's name (see ``KeyLayout.topic_id``)."""
    if one is None or other is None:
        return False
    return layout.topic_id(topic, one).contradicts(layout.topic_id(topic, other))
