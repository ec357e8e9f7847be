"""``tieredstore pipeline redrive``: bad messages parsed once more, and what became of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tieredstore.cli.app.arguments import Json
from tieredstore.cli.app.steps import Yes, is_dry_run, way_to_apply
from tieredstore.cli.terminal.output import JsonValue, counted, print_json_line, print_lines
from tieredstore.pipelines.cli.files import PipelineFile, extent, open_runner

if TYPE_CHECKING:
    from tieredstore.pipelines.run.redrive import Aside, Redriven

_REASONS: Final = 5
"""How many of them a file's lines have."""


def redrive(file: PipelineFile, yes: Yes = False, as_json: Json = False) -> None:
    """Parse the bad messages once more that were put aside, by the settings of now, and file those that are good.

    Without --yes it only shows the files that it would parse. Records are filed below what is there, each once; what is
    still bad stays aside, with its reason, which is told. Whoever runs the pipeline ends with exit code 5, and may be
    started again.

    Example: tieredstore pipeline redrive events.properties --yes
    """
    if is_dry_run(yes=yes):
        with open_runner(file) as runner:
            _tell_plan(runner.bad_messages(), as_json=as_json)
        return
    files = records = filtered = bad = 0
    with open_runner(file) as runner:
        for one in runner.redrive():
            files += 1
            records += one.window.records
            filtered += one.window.filtered
            bad += one.window.quarantined
            if as_json:
                print_json_line(_redriven_json(one))
            else:
                print_lines(_redriven_lines(one))
    if as_json:
        print_json_line(
            {"summary": {"records": records, "filtered": filtered, "quarantined": bad, "parsed_files": files}}
        )
    elif files:
        out = f"; {filtered} left out" if filtered else ""
        still = f"{bad} stay bad" if bad else "none stays bad"
        print_lines([f"{counted(files, 'file')} parsed once more: {counted(records, 'message')} filed{out}; {still}"])
    else:
        print_lines(["no bad messages are put aside"])


def _tell_plan(asides: list[Aside], *, as_json: bool) -> None:
    bad = sum(one.file.records for one in asides)
    if not as_json:
        print_lines(
            f"would be parsed again: {extent(one.window)}: {counted(one.file.records, 'message')} in {one.file.key}"
            for one in asides
        )
        print_lines([way_to_apply("parsed") if asides else "no bad messages are put aside"])
        return
    for one in asides:
        print_json_line({
            "topic": one.window.topic, "partition": one.window.partition, "first_offset": one.window.start,
            "last_offset": one.window.stop - 1, "quarantined": one.file.records, "quarantine_key": one.file.key,
        })  # fmt: skip
    print_json_line({"summary": {"quarantined": bad, "parsed_files": len(asides), "dry_run": True}})


def _redriven_json(one: Redriven) -> JsonValue:
    files = () if one.entry is None else one.window.files
    return {
        "topic": one.window.topic,
        "partition": one.window.partition,
        "first_offset": one.window.start,
        "last_offset": one.window.stop - 1,
        "records": one.window.records,
        "filtered": one.window.filtered,
        "quarantined": one.window.quarantined,
        "output_keys": [file.key for file in files],
        "quarantine_key": one.key,
        "reasons": [
            {"reason": reason, "quarantined": len(offsets), "first_offset": offsets[0]}
            for reason, offsets in _by_reason(one)
        ],
    }


def _redriven_lines(one: Redriven) -> list[str]:
    out = f", {one.window.filtered} left out" if one.window.filtered else ""
    bad = f", {one.window.quarantined} stay bad in {one.key}" if one.key is not None else ""
    reasons = list(_by_reason(one))
    more = len(reasons) - _REASONS
    return [
        f"{extent(one.window)}: {counted(one.window.records, 'message')} filed{out}{bad}",
        *(f"  {len(offsets)} from offset {offsets[0]} on: {reason}" for reason, offsets in reasons[:_REASONS]),
        *([f"  and for {counted(more, 'other reason')}"] if more > 0 else []),
    ]


def _by_reason(one: Redriven) -> list[tuple[str, list[int]]]:
    """What most messages are bad for first."""
    offsets: defaultdict[str, list[int]] = defaultdict(list)
    for offset, reason in sorted(one.reasons.items()):
        offsets[reason].append(offset)
    return sorted(offsets.items(), key=lambda item: (-len(item[1]), item[1][0]))
