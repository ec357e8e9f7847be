"""Groups of Kafka 4.1 that are neither classic nor consumer groups: a share group and a streams group."""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from typing import Any, Final

from confluent_kafka import ShareConsumer

from tieredstore.live.cluster_state import ClusterState

OTHER_GROUPS: Final = {
    "group.coordinator.rebalance.protocols": "classic,consumer,share,streams",
    "group.share.enable": "true",
    "unstable.api.versions.enable": "true",
    "unstable.feature.versions.enable": "true",  # streams.version
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
"""Settings of a broker that has such groups."""


def make_other_groups(servers: str, topic: str) -> None:
    """Make the share group ``shared`` and the streams group ``streaming``, which read a topic."""
    consumer: Any = ShareConsumer({"bootstrap.servers": servers, "group.id": "shared", "log_level": 0})
    with closing(consumer), ClusterState({"bootstrap.servers": servers}) as cluster:
        consumer.subscribe([topic])
        while "shared" not in cluster.list_groups():
            consumer.poll(0.1)
        # By now, the broker has loaded its groups, so it answers the first request.
        _join_streams_group(servers, "streaming", topic)
        assert "streaming" in cluster.list_groups()


def _join_streams_group(servers: str, group: str, topic: str) -> None:
    """Join a group by a StreamsGroupHeartbeat (KIP-1071), which no client for Python can send."""
    subtopology = b"%s\x02%s%s\0" % (_text("0"), _text(topic), _EMPTY * 5)
    topology = b"\x01%s\x02%s\0" % (struct.pack(">i", 1), subtopology)
    member = b"%s%s%s" % (_text(group), _text("member"), struct.pack(">iibbi", 0, 0, 0, 0, 1500))
    tasks = _EMPTY * 3
    last = b"%s\xff%s\0\0\0\0" % (_text("process"), _EMPTY)
    request = struct.pack(">hhihcb", 88, 0, 1, 1, b"c", 0) + member + topology + tasks + last
    host, _, port = servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(request)) + request)
        # The answer begins with length, correlation id, tagged fields, throttle time and error code.
        *_, error = struct.unpack(">iibih", answers.read(15))
        assert error == 0


def _text(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


_EMPTY: Final = b"\x01"
