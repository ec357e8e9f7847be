"""Tables fit a terminal: a row is a line, ids and numbers stay whole, excess is cut or left out."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.cli.terminal.tables import WIDE, Column, cell_count, cut, moment, number, table_lines, text, word

ID = "gOcsH0CwReGbLTiEBBuJFQ"
COLUMNS = [
    text("TOPIC"),
    number("PART"),
    number("SIZE", rank=2),
    number("RATIO", rank=3),
    word("LAST RECORD", rank=1),
    word("TOPIC ID", rank=WIDE),
]
ROWS = [
    ["payments.settlement.of.the.day", "0", "1018.0 KiB", "3.47", "2026-01-01 00:00:13", ID],
    ["größe", "12", "2.0 MiB", "12.01", "-", ID],
]


def drawn(width: int | None, *, is_wide: bool = False) -> list[str]:
    return list(table_lines(COLUMNS, ROWS, width=width, is_wide=is_wide))


def test_in_a_pipe_nothing_is_cut() -> None:
    assert drawn(None) == [
        "TOPIC                           PART        SIZE  RATIO  LAST RECORD",
        "─" * 76,
        "payments.settlement.of.the.day     0  1018.0 KiB   3.47  2026-01-01 00:00:13",
        "größe                             12     2.0 MiB  12.01  -",
    ]


def test_text_is_cut_and_then_columns_are_left_out_by_their_rank() -> None:
    assert drawn(70)[2] == "payments.settlement.of.…     0  1018.0 KiB   3.47  2026-01-01 00:00:13"
    assert drawn(54)[2] == "payment…     0  1018.0 KiB   3.47  2026-01-01 00:00:13"
    assert "RATIO" not in drawn(50)[0]
    assert "SIZE" in drawn(50)[0]
    assert drawn(40)[0].split() == ["TOPIC", "PART", "LAST", "RECORD"]
    assert drawn(20)[0].split() == ["TOPIC", "PART"]


def test_times_become_days_before_a_column_goes_that_people_look_for() -> None:
    columns = [text("TOPIC"), word("OFFSETS", short=lambda _: "all"), number("SIZE", rank=2), number("N", rank=3)]
    rows = [["orders", "0 … 12345678901", "1.0 MiB", "1", "2026-01-01 00:00:13"]] * 2

    def shown(width: int) -> tuple[list[str], str]:
        lines = [*table_lines([*columns, moment("LAST", rank=1)], iter(rows), width=width, sample=1)]
        assert lines[2] == lines[3]
        return lines[0].split(), lines[2]

    every = ["TOPIC", "OFFSETS", "SIZE", "N", "LAST"]
    assert shown(60) == (every, "orders  0 … 12345678901  1.0 MiB  1  2026-01-01 00:00:13")
    assert shown(55)[0] == ["TOPIC", "OFFSETS", "SIZE", "LAST"]
    assert shown(50) == (every, "orders  all      1.0 MiB  1  2026-01-01")
    assert shown(36)[0] == ["TOPIC", "OFFSETS", "SIZE", "LAST"]
    assert shown(30)[0] == ["TOPIC", "OFFSETS", "LAST"]


def test_wide_shows_all_and_cuts_nothing() -> None:
    for width in (None, 40, 300):
        assert drawn(width, is_wide=True)[2].endswith(ID)
        assert drawn(width, is_wide=True)[2].startswith("payments.settlement.of.the.day ")
    assert not any(ID in line for line in drawn(300))


def test_no_line_is_longer_than_the_terminal() -> None:
    for width in range(1, 100):
        assert max(map(cell_count, drawn(width))) <= width


def test_the_total_is_parted_from_the_rest() -> None:
    lines = list(table_lines([number("N")], [["1"], ["22"], ["23"]], total=True))
    assert lines == [" N", "──", " 1", "22", "──", "23"]


def test_a_growing_table_is_as_wide_as_its_first_rows_and_takes_the_others_one_by_one() -> None:
    columns, taken = [text("TEXT"), number("N"), text("TEXT")], list[int]()

    def rows() -> itertools.chain[list[str]]:
        def noted(count: int) -> list[str]:
            taken.append(count)
            return ["x" * count, str(count), "x" * count]

        return itertools.chain.from_iterable([noted(count)] for count in (1, 3, 70))

    lines = table_lines(columns, rows(), width=20, sample=2)
    assert [next(lines) for _ in range(4)] == ["TEXT  N  TEXT", "─────────────", "x     1  x", "xxx   3  xxx"]
    assert taken == [1, 3]
    assert list(lines) == ["xxx…  70  xxxxxxxxx…"]
    assert list(table_lines(columns, rows(), sample=2))[-1] == f"{'x' * 70}  70  {'x' * 70}"


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert (
        list(table_lines([text("A")], [["\x1b[2J\u202e"]]))[2]
        == "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    )


def test_cells_are_counted_as_a_terminal_shows_them() -> None:
    assert list(map(cell_count, ("größe", "日本", "e\u0301", ""))) == [5, 4, 1, 0]
    assert cut("日本語", 5) == "日本…"
    assert cut("日本語", 4) == "日…"
    assert cut("日本語", 6) == "日本語"
    assert cut("abc", 0) == ""


def _halved(cell: str) -> str:
    return cell[: len(cell) // 2]


CELLS = st.text(st.sampled_from("ab -日e\u0301\x1b"), max_size=30)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4),
    kinds=st.tuples(
        *[
            st.builds(
                Column,
                st.just("NAME"),
                st.booleans(),
                st.sampled_from([None, 1, 8]),
                st.integers(0, 3),
                st.sampled_from([None, _halved]),
            )
        ]
        * 3
    ),
    width=st.one_of(st.none(), st.integers(1, 100)),
)
def test_any_table_has_one_line_a_row_that_fits(
    rows: list[tuple[str, str, str]], kinds: tuple[Column, Column, Column], width: int | None
) -> None:
    lines = list(table_lines(kinds, rows, width=width))
    assert len(lines) == 2 + len(rows)
    if width is not None:
        assert max(map(cell_count, lines)) <= width
