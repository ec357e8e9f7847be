"""What ``tieredstore pubsub audit`` shows: what became of each producer's requests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import typer

from tieredstore.cli.terminal.output import JsonValue, counted, iso_utc, print_json_line, print_lines
from tieredstore.model import human_bytes
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding, TopicAudit

if TYPE_CHECKING:
    from tieredstore.pubsub.upkeep.audit_log import AuditPairs

_FAULTY_CODE: Final = 4
_NO_FAULTS: Final = frozenset({AuditFault.PENDING, AuditFault.LOST_OR_EMPTY, AuditFault.UNANNOUNCED})


def show_audit(
    topics: Topics, name: str, *, now_ms: int, settle_ms: int | None, late_ms: int, bodies: bool, as_json: bool
) -> None:
    """The command; typer.Exit with 4 if anything is lost, doubled, late or altered."""
    settle_ms = topics.batches.delivery_timeout_ms if settle_ms is None else settle_ms
    audit = TopicAudit(topics, topics.get(name), now_ms, settle_ms, late_ms, bodies)
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


def pair_records(
    topics: Topics, name: str, *, since_ms: int | None, settle_ms: int | None, late_ms: int, as_json: bool
) -> None:
    """The command with --records; typer.Exit as above."""
    from tieredstore.pubsub.upkeep.audit_log import AuditLog, now_ms

    topics.get(name)
    pairs = _pairs(settle_ms, late_ms, since_ms)
    with AuditLog(topics, name, pairs, since_ms) as log:
        for finding in log.read(now_ms):
            _show(name, finding, as_json=as_json)
        for finding in log.pending():
            _show(name, finding, as_json=as_json)
    counts = pairs.counts
    if as_json:
        _sums(log.requests, producers=len(pairs.producers), messages=counts.produced, records=counts.paired_records)
    else:
        sent = (
            f"{counted(counts.produced, 'Message')} sent to topic {name} by {counted(len(pairs.producers), 'producer')}"
        )
        said = _faults(log.requests) or "each was read as it was sent"
        print_lines([f"{sent}: {said}, as audit records say; no batch was read"])
    _exit_if_faulty(log.requests)


def follow_records(
    topics: Topics, name: str, *, since_ms: int, settle_ms: int | None, late_ms: int, as_json: bool
) -> None:
    """The command with --follow; typer.Exit with the service's code."""
    from tieredstore.pubsub.upkeep.audit_log import AuditLog, audit_service

    topics.get(name)
    with AuditLog(topics, name, _pairs(settle_ms, late_ms, since_ms), since_ms) as log:
        code = audit_service(topics, log, lambda finding: _show(name, finding, as_json=as_json)).run()
    raise typer.Exit(code)


def _pairs(settle_ms: int | None, late_ms: int, since_ms: int | None) -> AuditPairs:
    from tieredstore.pubsub.upkeep.audit_log import SETTLE_MS, AuditPairs

    return AuditPairs(settle_ms=SETTLE_MS if settle_ms is None else settle_ms, late_ms=late_ms, begin_ms=since_ms or 0)


def _show(topic: str, finding: AuditFinding, *, as_json: bool) -> None:
    if as_json:
        print_json_line(_row(topic, finding))
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


def _row(topic: str, finding: AuditFinding) -> dict[str, JsonValue]:
    address, started_ms = (None, None) if finding.producer is None else finding.producer
    return {
        "topic": topic,
        "fault": finding.fault.value,
        "producer_address": None if address is None else address.hex(),
        "producer_started": None if started_ms is None else iso_utc(started_ms),
        "producer_started_ms": started_ms,
        "request_id": finding.first,
        "last_request_id": finding.last,
        "partition": finding.partition,
        "offset": finding.offset,
        "object": finding.key,
        "reason": finding.why,
    }


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
