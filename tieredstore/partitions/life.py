"""The incarnation of a topic to read, if bucket and broker have several. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tieredstore.model import Uuid

if TYPE_CHECKING:
    from tieredstore.catalog.catalog import Catalog, Incarnation
    from tieredstore.remote.layout import KeyLayout


class Life(NamedTuple):
    """The incarnation to read: ``stored`` in the bucket, and the broker's if ``is_live``.

    ``others`` are incarnations in the bucket, none of which is the broker's topic of this name.
    """

    stored: Incarnation | None
    is_live: bool
    others: tuple[Uuid, ...] = ()


def choose_life(
    catalog: Catalog, layout: KeyLayout, topic: str, *, live: Uuid | None = None, wanted: Uuid | None = None
) -> Life:
    """Find the incarnation that bucket and broker share; ``live`` is the broker's id, ``wanted`` the requested one.

    Without the broker's, or if that is not wanted, it is the only one in the bucket, if any. Ids contradict each other
    only if both are real: see ``KeyLayout.topic_id``. Raise ConfigError for several incarnations if nothing chooses
    one, ResourceNotFoundError if the wanted one is not among them.
    """
    if live is None or contradict(layout, topic, live, wanted):
        return Life(catalog.incarnation(topic, wanted) if topic in catalog.topics() else None, is_live=False)
    lives = catalog.incarnations(topic) if topic in catalog.topics() else ()
    for life in lives:
        if not contradict(layout, topic, live, life.topic_id):
            return Life(life, is_live=True)
    return Life(None, is_live=True, others=tuple(life.topic_id for life in lives))


def contradict(layout: KeyLayout, topic: str, one: Uuid | None, other: Uuid | None) -> bool:
    """Return True if two ids of a topic are certainly of different incarnations."""
    if one is None or other is None:
        return False
    return layout.topic_id(topic, one).contradicts(layout.topic_id(topic, other))
