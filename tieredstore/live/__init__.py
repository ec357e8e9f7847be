"""Reads records of Kafka brokers as Arrow: a given range, or new records as they arrive. Needs
``tieredstore[kafka]``."""

from __future__ import annotations

from tieredstore.installation import Extra
from tieredstore.model import Isolation

with Extra("reading from a broker", "kafka"):
    from tieredstore.live.cluster import LiveCluster, LiveEnd, LiveTopic
    from tieredstore.live.epochs import EpochEnd
    from tieredstore.live.follower import LiveEvent, LiveFollower
    from tieredstore.live.reader import LiveReader

__all__ = [
    "EpochEnd",
    "Isolation",
    "LiveCluster",
    "LiveEnd",
    "LiveEvent",
    "LiveFollower",
    "LiveReader",
    "LiveTopic",
]
