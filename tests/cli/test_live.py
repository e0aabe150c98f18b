import pytest

from mlx_platform.cli.live import fitted
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.verdict import Check, Verdict

REPORT = Report(
    title="t",
    summary="SUMMARY",
    facts=tuple(Fact("fact", str(number)) for number in range(10)),
    sections=(Table("ONE", ("a",), (("1",),) * 5), Table("TWO", ("a",), (("1",),) * 5)),
    checks=(Check("CHECK", Verdict.PASS, "", ""),),
    next_steps=("NEXT",),
)


def draw(result):
    report = result.report
    parts = [report.summary, *(fact.value for fact in report.facts), *(check.name for check in report.checks)]
    parts += [line for table in report.sections for line in (table.title, *(row[0] for row in table.rows))]
    return "\n".join([*parts, *report.next_steps])


@pytest.mark.parametrize(
    ("height", "there", "gone"),
    [
        (50, ("fact", "TWO", "NEXT"), ()),
        (24, ("TWO",), ("NEXT",)),
        (20, ("TWO",), ("NEXT", "9")),
        (10, ("ONE",), ("NEXT", "9", "TWO")),
        (2, ("ONE",), ("NEXT", "9", "TWO")),
    ],
)
def test_a_small_screen_keeps_the_verdicts_and_loses_what_is_known_before(height, there, gone):
    text = fitted(Result(command="c", data={}, report=REPORT), height, lambda result: draw(result) + "\nfact")

    assert "CHECK" in text
    assert all(word in text for word in there)
    assert not any(word in text.splitlines() for word in gone)
