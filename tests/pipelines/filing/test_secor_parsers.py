"""Odd messages are filed where Secor files them, or the page says why not."""

from __future__ import annotations

import pytest

from tests.pipelines.filing.test_filing import filed, parser, records
from tests.support.pipelines.secor_cases import PAGE, REFUSED, SecorCase, load_cases, renew
from tieredstore.errors import ConfigError

CASES = load_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parser}-{CASES.index(case)}")
def test_odd_messages_are_filed_as_the_table_says(case: SecorCase) -> None:
    if case.ours == REFUSED:
        with pytest.raises(ConfigError, match="class of characters within another"):
            parser(**case.properties)
        return
    assert filed(parser(**case.properties), records(case.value)) == [case.ours]
    strict = parser(**case.properties, **{"secor.parser.strict": "true"})
    assert filed(strict, records(case.value)) == [case.strict]
    assert case.strict in (case.ours, None)


def test_what_differs_from_secor_has_a_reason() -> None:
    assert all(bool(case.why) == (case.ours != case.secor) for case in CASES)
    assert sum(not case.why and case.ours is not None for case in CASES) > 70


def test_the_page_has_the_table() -> None:
    assert renew(PAGE.read_text()) == PAGE.read_text(), "run `make docs`"
