"""Secor's properties: those that a pipeline uses, those that it ignores, those that it refuses, and readers of their
texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tieredstore.pipelines.files.sequencefile import CODEC_CLASSES

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "aws.proxy.": "",
    "include": "put all properties into one file",
    "kafka.client.className": "",
    "kafka.consumer.": "only Kafka's old consumer used it",
    "kafka.dual.commit.enabled": "progress is in the commit log; commit.to.group shows it in Kafka",
    "kafka.fetch.": "",
    "kafka.message.iterator.className": "",
    "kafka.message.timestamp.className": "",
    "kafka.new.consumer.max.poll.": "",
    "kafka.new.consumer.partition.assignment.strategy.class": "",
    "kafka.new.consumer.poll.timeout.seconds": "",
    "kafka.new.consumer.request.timeout.ms": "",
    "kafka.partition.assignment.strategy": "",
    "kafka.rebalance.": "",
    "kafka.socket.receive.buffer.bytes": "",
    "kafka.useTimestamp": "timestamps are always read",
    "message.timestamp.type": "each message carries the type of its timestamp",
    "monitoring.": "",
    "ostrich.port": "",
    "parquet.": "row groups end at fixed sizes",
    "qubole.": "",
    "secor.consumer.threads": "each core writes with one thread",
    "secor.enable.qubole": "",
    "secor.file.reader.Delimiter": "",
    "secor.finalizer.lookback.periods": "complete directories are finalized, however old they are",
    "secor.gs.upload.direct": "",
    "secor.kafka.group": "progress is in the commit log; startingOffsets=group:NAME starts at a group's offsets",
    "secor.local.log.delete.age.hours": "each process deletes its temporary files when it ends",
    "secor.max.message.size.bytes": "",
    "secor.messages.per.second": "",
    "secor.monitoring.": "",
    "secor.offsets.commit": "",
    "secor.orc.": "",
    "secor.qubole.timeout.ms": "",
    "secor.s3.filesystem": "",
    "secor.swift.": "",
    "secor.topic_partition.forget.seconds": "",
    "secor.upload.class": "output.storage.backend.class chooses the store",
    "secor.upload.last.seen.offset": "",
    "secor.upload.manager.class": "output.storage.backend.class chooses the store",
    "secor.upload.secor.upload.last.seen.offset": "",
    "secor.zookeeper.path": "",
    "statsd.": "",
    "swift.": "",
    "tsdb.": "",
    "zookeeper.": "only startingOffsets uses ZooKeeper, by zookeeper.quorum",
}
"""Properties of Secor that a pipeline accepts but ignores, some with a note. A name that ends in a dot is a prefix."""

REFUSED: Final[Mapping[str, str]] = {
    "aws.access.key": "set output.storage.aws.access.key.id",
    "aws.client.pathstyleaccess": "set output.storage.s3.path.style.access.enabled",
    "aws.endpoint": "set output.storage.s3.endpoint.url",
    "aws.region": "set output.storage.s3.region",
    "aws.role": "give the AWS SDK the role's credentials, for example by environment variables",
    "aws.secret.key": "set output.storage.aws.secret.access.key",
    "aws.session.token": "give the AWS SDK credentials, for example by environment variables",
    "aws.sse.": "set a default encryption for the bucket",
    "cloud.service": "set output.storage.backend.class",
    "kafka.seed.broker.host": "set kafka.bootstrap.servers",
    "kafka.seed.broker.port": "set kafka.bootstrap.servers",
    "message.timestamp.skew.max.ms": "a directory follows the message's time, past or future: leave it out",
    "message.timestamp.required": "a message without a usable time is always bad: leave it out",
    "secor.file.age.youngest": "a file's age is the age of its partition's first unwritten record: leave it out",
    "secor.gs.": "set output.storage.gcs.*",
    "secor.s3.bucket": "set output.storage.s3.bucket.name",
    "secor.s3.path": "set output.key.prefix with a slash at its end",
    "secor.topic.message.format.": (
        "Protocol Buffers must be binary; for JSON use a separate pipeline with the parser json"
    ),
    "secor.azure.": "set output.storage.azure.*",
}
"""Properties of Secor that a pipeline refuses, each with an alternative. A name that ends in a dot is a prefix."""

HONOURED: Final = "a property of Secor's"
"""Mark in a setting's annotation: Secor has a property of the same name."""

HONOURED_BEGINNINGS: Final = ("hive.table.name.TOPIC", "schema.registry.*", "kafka.new.consumer.*")
"""Patterns of other Secor property names that a pipeline also uses."""

ALSO_CALLED: Final[Mapping[str, str]] = {
    "secor.hive.prefix": "hive.table.prefix",
    "secor.hive.table.name.": "hive.table.name.",
}
"""Names that some versions of Secor use, each with tieredstore's name. A name that ends in a dot is a prefix."""

WRITER: Final = "secor.file.reader.writer.factory"
CODEC: Final = "secor.compression.codec"
DELIMITER: Final = "secor.file.writer.Delimiter"
FIELD_PREFIX: Final = "partitioner.granularity.field.prefix"

HARMLESS: Final[Mapping[str, frozenset[str]]] = {
    "aws.client.pathstyleaccess": frozenset({"false"}),
    "kafka.seed.broker.port": frozenset({"9092"}),
    "message.timestamp.required": frozenset({"true"}),
}
"""Accepted values of properties that are otherwise refused. These values have no effect, and Secor's sample files
contain them."""

PARSERS: Final = "com.pinterest.secor.parser."
WRITERS: Final = "com.pinterest.secor.io.impl."
"""Prefix of Secor's writer classes."""
_ALWAYS_LINES: Final = f"{WRITERS}DelimitedTextFileReaderWriterFactory"

TRANSFORMERS: Final = {"com.pinterest.secor.transformer.IdentityMessageTransformer": ""}
_PROTOCOLS: Final = "org.apache.thrift.protocol."
THRIFT_PROTOCOLS: Final = {f"{_PROTOCOLS}TBinaryProtocol": "binary", f"{_PROTOCOLS}TCompactProtocol": "compact"}
CODEC_NAMES: Final = {java_class: name for name, java_class in CODEC_CLASSES.items()} | {
    "org.apache.hadoop.io.compress.DeflateCodec": "deflate"
}


_BLANKS: Final = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\s": " ", "\\f": "\f"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[ntrsf])")


def delimiter_bytes(text: str) -> bytes:
    """Return a delimiter as UTF-8 bytes. Raise ValueError for half a surrogate pair.

    A settings file trims its values, so users write control characters as Java escapes such as ``\\n``.
    """
    plain = _ESCAPE.sub(lambda escape: _BLANKS.get(escape[0]) or chr(int(escape[1], 16)), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16").encode()


def read_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a file's properties by tieredstore's names. Leave out empty properties, with three exceptions.

    The exceptions: an empty codec means no compression, an empty delimiter no delimiter, and an empty field prefix no
    prefix. Also leave out the delimiter of Secor's DelimitedTextFile, which always ends a value with a newline.
    """
    given: dict[str, str] = {}
    for name, text in properties.items():
        if text.strip():
            ours = _ours(name)
            # If a file has a property under both names, tieredstore's name wins over Secor's.
            if ours == name or not properties.get(ours, "").strip():
                given[ours] = text
    if CODEC in properties and CODEC not in given:
        given[CODEC] = "none"
    if given.get(WRITER, "").strip() == _ALWAYS_LINES:
        given.pop(DELIMITER, None)
    elif (delimiter := properties.get(DELIMITER, "\n")) != "\n":  # a delimiter may consist of whitespace
        given[DELIMITER] = "".join(f"\\u{ord(each):04x}" if each <= " " else each for each in delimiter)
    if FIELD_PREFIX in properties:
        given[FIELD_PREFIX] = properties[FIELD_PREFIX].strip()
    return given


def _ours(name: str) -> str:
    for theirs, ours in ALSO_CALLED.items():
        if name == theirs or (theirs.endswith(".") and name.startswith(theirs)):
            return ours + name.removeprefix(theirs)
    return name


def entry_of(name: str, table: Mapping[str, str]) -> str | None:
    """Return the table's entry for a property's name, or for a prefix of the name that ends with a dot; else None."""
    if name in table:
        return table[name]
    return next((words for start, words in table.items() if start.endswith(".") and name.startswith(start)), None)


def path_prefix(text: str) -> str:
    """Return ``text`` if it can be the prefix of a directory's name; raise ValueError otherwise."""
    if "/" in text or text in {".", ".."}:
        raise ValueError
    return text


def matcher(pattern: str) -> Callable[[str], str]:
    """Return a reader that accepts only a text that the pattern matches as a whole, and raises ValueError otherwise."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


def read_name(names: Mapping[str, str], *, own: bool = False) -> Callable[[str], str]:
    """Return a reader of short names. The reader also accepts Secor's class names, which ``names`` maps to short names.

    With ``own``, the reader also accepts the user's own class as ``module:Class``. It raises ValueError for other text.
    """
    known = {**names, **{short: short for short in names.values()}}

    def parse(text: str) -> str:
        if own and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
            return text
        if text not in known:
            raise ValueError
        return known[text]

    return parse
