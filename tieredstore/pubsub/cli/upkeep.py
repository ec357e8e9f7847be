"""What ``tieredstore pubsub gc``, ``cost`` and ``audit`` show. Beside ``pubsub``, which imports it when one runs."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tieredstore.cli.app.steps import Tally, telling
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    counted,
    human_amount,
    iso_utc,
    print_json_line,
    print_lines,
    print_table,
)
from tieredstore.cli.terminal.rows import Row, field, rounded_bytes, rounded_count
from tieredstore.cli.terminal.tables import number, text
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.prices import read_prices
from tieredstore.ops.steps import Outcome, Step
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding, TopicAudit
from tieredstore.pubsub.upkeep.cost import TopicCost, TopicFacts, topic_assumptions, topic_cost, topic_facts
from tieredstore.pubsub.upkeep.garbage import Found, GarbageCollection

if TYPE_CHECKING:
    from tieredstore.pubsub.upkeep.audit_log import AuditLog

_FAULTY_CODE: Final = 4
_NO_FAULTS: Final = frozenset({AuditFault.PENDING, AuditFault.LOST_OR_EMPTY, AuditFault.UNANNOUNCED})


def show_audit(audit: TopicAudit, *, as_json: bool) -> None:
    """The command; typer.Exit with 4 if anything is lost, doubled, late or altered."""
    name = audit.topic.name
    for finding in audit.run():
        _show(name, finding, as_json=as_json)
    if as_json:
        read: dict[str, JsonValue] = {
            "batches": audit.batches, "batch_bytes": audit.batch_bytes, "bodies_read": audit.bodies
        }  # fmt: skip
        _sums(audit.requests, producers=audit.producers, messages=audit.messages, records=audit.records, read=read)
    else:
        print_lines([_summary(name, audit)])
    _exit_if_faulty(audit.requests)


def open_audit_log(topics: Topics, name: str, settle_ms: int | None, late_ms: int, since_ms: int | None) -> AuditLog:
    """The audit records of a topic, to be closed; MemQ's time to settle unless one is given."""
    from tieredstore.pubsub.upkeep.audit_log import SETTLE_MS, AuditLog, AuditPairs

    settle_ms = SETTLE_MS if settle_ms is None else settle_ms
    pairs = AuditPairs(settle_ms=settle_ms, late_ms=late_ms, begin_ms=since_ms or 0)
    return AuditLog(topics, name, pairs, since_ms)


def pair_records(_: Topics, log: AuditLog, *, as_json: bool) -> None:
    """The command with --records; typer.Exit as above."""
    from tieredstore.pubsub.upkeep.audit_log import now_ms

    for findings in (log.read(now_ms), log.pending()):
        for finding in findings:
            _show(log.topic, finding, as_json=as_json)
    counts, producers = log.pairs.counts, len(log.pairs.producers)
    if as_json:
        _sums(log.requests, producers=producers, messages=counts.produced, records=counts.paired_records)
    else:
        sent = f"{counted(counts.produced, 'Message')} sent to topic {log.topic} by {counted(producers, 'producer')}"
        said = _faults(log.requests) or "each was read as it was sent"
        print_lines([f"{sent}: {said}, as audit records say; no batch was read"])
    _exit_if_faulty(log.requests)


def follow_records(topics: Topics, log: AuditLog, *, as_json: bool) -> None:
    """The command with --follow; typer.Exit with the service's code."""
    from tieredstore.pubsub.upkeep.audit_log import audit_service

    raise typer.Exit(audit_service(topics, log, lambda finding: _show(log.topic, finding, as_json=as_json)).run())


def _show(topic: str, finding: AuditFinding, *, as_json: bool) -> None:
    if as_json:
        print_json_line({"topic": topic, **_FINDING.json(finding)})
    else:
        print_lines([_line(finding)])


def _sums(
    requests: Counter[AuditFault],
    *,
    producers: int,
    messages: int,
    records: int,
    read: dict[str, JsonValue] | None = None,
) -> None:
    faults: dict[str, JsonValue] = {fault.value: requests[fault] for fault in AuditFault}
    sums: dict[str, JsonValue] = {"producers": producers, "message_count": messages, "records": records}
    print_json_line({"summary": sums | (read or {}) | faults})


def _exit_if_faulty(requests: Counter[AuditFault]) -> None:
    if any(requests[fault] for fault in AuditFault if fault not in _NO_FAULTS):
        raise typer.Exit(_FAULTY_CODE)


_FINDING: Final[Row[AuditFinding]] = Row(
    field("fault", lambda finding: finding.fault),
    field("producer_address", lambda finding: finding.producer and finding.producer[0].hex()),
    field("producer_started", lambda finding: finding.producer and iso_utc(finding.producer[1])),
    field("producer_started_ms", lambda finding: finding.producer and finding.producer[1]),
    field("request_id", lambda finding: finding.first),
    field("last_request_id", lambda finding: finding.last),
    field("partition", lambda finding: finding.partition),
    field("offset", lambda finding: finding.offset),
    field("object", lambda finding: finding.key),
    field("reason", lambda finding: finding.why),
)


def _line(finding: AuditFinding) -> str:
    if finding.producer is None or finding.first is None:
        return f"{_words(finding.fault)}: {finding.why}"
    address, started_ms = finding.producer
    requests = f"request {finding.first}" if finding.first == finding.last else (
        f"requests {finding.first} to {finding.last}"
    )  # fmt: skip
    producer = f"producer {address.hex()}, started {iso_utc(started_ms)}"
    return f"{_words(finding.fault)}: {requests} of {producer}: {finding.why}"


def _summary(topic: str, audit: TopicAudit) -> str:
    if not audit.messages and not audit.requests:
        return f"no Messages in topic {topic}"
    seen = f"{counted(audit.messages, 'Message')} of {counted(audit.producers, 'producer')} in topic {topic}"
    objects = f"{counted(audit.batches, 'object')} ({human_bytes(audit.batch_bytes)})"
    read = f"{objects} read in full" if audit.bodies else f"headers of {objects} read, and no record (--bodies)"
    return f"{seen}: {_faults(audit.requests) or 'each request stands once'}; {read}"


def _faults(requests: Counter[AuditFault]) -> str:
    return ", ".join(f"{requests[fault]} {_words(fault)}" for fault in AuditFault if requests[fault])


def _words(fault: AuditFault) -> str:
    return fault.replace("_", " ")


_WORDS: Final = {
    Outcome.FREED: "freed by retention, whose objects go later",
    Outcome.WAITING: "freed before, whose objects readers may still fetch",
    Outcome.ADOPTED: "orphans of which readers are told now",
    Outcome.YOUNG: "without a notification, too young",
    Outcome.FORGOTTEN: "without a notification, older than what the queue remembers",
    Outcome.DAMAGED: "orphans that are no batches",
}


_OUTCOMES: Final = (
    Outcome.FREED, Outcome.DELETED, Outcome.ADOPTED, Outcome.WAITING, Outcome.YOUNG, Outcome.FORGOTTEN, Outcome.DAMAGED,
)  # fmt: skip
_FOUND: Final[Row[Step[Found]]] = Row(
    field("outcome", lambda step: step.outcome),
    field("object", lambda step: step.item.key),
    field("size", lambda step: step.item.size),
    field("partition", lambda step: step.item.partition),
    field("offset", lambda step: step.item.offset),
)


def choose_topics(topics: Topics, name: str | None) -> list[Topic]:
    """One topic, or all of them."""
    return [topics.get(name)] if name is not None else list(topics.list())


def collect_garbage(
    topics: Topics, runs: list[GarbageCollection], *, dry_run: bool, report: Path | None, as_json: bool
) -> None:
    """The command."""
    tally = Tally(Outcome.DELETED, _WORDS, "object", named=_OUTCOMES, dry_run=dry_run)
    with telling(as_json=as_json, report=report) as teller:
        for run in runs:
            for step in run.run():
                tally.add(step.outcome, step.item.size)
                size = "" if step.item.size is None else f" ({human_bytes(step.item.size)})"
                line = f"{tally.verb_of(step.outcome)}: {step.item.key}{size}"
                teller.tell({"topic": run.topic.name, **_FOUND.json(step)}, line)
            for warning in run.warnings:
                complain(warning)
        # Of what was freed before nobody knows the size.
        sentence = f"{counted(tally.counts[Outcome.DELETED], 'object')} {'would be deleted' if dry_run else 'deleted'}"
        tally.tell_deleted(teller, topics.store, sentence if tally.counts else "there is nothing to collect")
        if tally.counts[Outcome.ADOPTED]:
            complain("what is adopted may double what its producers sent again after DeliveryFailedError")


_FACTS: Final[Row[TopicFacts]] = Row(
    field("partitions", lambda facts: facts.partitions),
    field("stored_batches", lambda facts: facts.batches),
    field("stored_size", lambda facts: facts.stored_size, number("STORED", rank=3), human_bytes),
)
_COST: Final[Row[TopicCost]] = Row(
    field("published_size", lambda of: of.published_size, number("PUBLISHED", rank=2), rounded_bytes, digits=0),
    field("kept_size", lambda of: of.kept_size, digits=0),
    field("writes", lambda of: of.writes, number("WRITES", rank=4), rounded_count, digits=2),
    field("reads", lambda of: of.reads, number("READS", rank=4), rounded_count, digits=2),
    field("storage_cost", lambda of: of.storage, number("STORAGE", rank=5), human_amount, digits=6),
    field("request_cost", lambda of: of.requests, number("REQUESTS", rank=5), human_amount, digits=6),
    field("transfer_cost", lambda of: of.transfer, number("TRANSFER", rank=5), human_amount, digits=6),
    field("batches_cost", lambda of: of.batches, number("BATCHES"), human_amount, digits=6),
    field("disk_cost", lambda of: of.disks, number("DISKS", rank=6), human_amount, digits=6),
    field("cross_zone_cost", lambda of: of.cross_zone, number("CROSS-ZONE", rank=6), human_amount, digits=6),
    field("kafka_cost", lambda of: of.kafka, number("KAFKA"), human_amount, digits=6),
    field("saved_share", lambda of: of.saved_share, number("SAVED", rank=1), "{:.0%}".format, digits=6),
)
_COSTS: Final[Row[tuple[str, TopicFacts, TopicCost]]] = Row(
    field("topic", lambda row: row[0], text("TOPIC")),
    _FACTS.of(lambda row: row[1]),
    _COST.of(lambda row: row[2]),
)


def show_cost(topics: Topics, name: str | None, prices_path: Path | None, *, as_json: bool) -> None:
    """The command, for one topic or all of them, the dearest first."""
    if prices_path is None:
        raise ConfigError("no prices are given: write a price file (docs/cost.md), and name it by --prices FILE")
    prices, now_ms = read_prices(prices_path), time.time_ns() // 1_000_000
    rows: list[tuple[str, TopicFacts, TopicCost]] = []
    for topic in choose_topics(topics, name):
        facts = topic_facts(topics, topic, now_ms)
        rows.append((topic.name, facts, topic_cost(facts, prices, now_ms, topics.batches.batch_bytes)))
    rows.sort(key=lambda row: (-row[2].batches, row[0]))
    assumed = topic_assumptions(prices)
    if as_json:
        for row in rows:
            print_json_line(_COSTS.json(row))
        print_json_line(
            {
                "summary": {
                    "currency": prices.currency, "prices": prices.name, "as_of": prices.as_of,
                    "assumptions": list(assumed),
                }
            }
        )  # fmt: skip
    elif not rows:
        complain(f"no topics in cluster {topics.batches.cluster}")
    else:
        print_table(_COSTS.columns, map(_COSTS.cells, rows))
        for sentence in (f"a month by {prices.title}", *(f"assumed: {one}" for one in assumed)):
            complain(sentence)
