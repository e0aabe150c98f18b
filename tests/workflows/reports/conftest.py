import math
from collections.abc import Callable

import pytest

from mlx_platform.core.report import (
    Bars,
    Fact,
    Gauge,
    Lines,
    Matrix,
    Plot,
    Points,
    Report,
    Result,
    Series,
    Span,
    Spans,
    Table,
    Text,
)
from mlx_platform.core.verdict import Check, Verdict

MakeResult = Callable[[str], Result]


@pytest.fixture
def make_result() -> MakeResult:
    """Builds a result that has one of everything, each with the same text in every place."""
    return _result


def _result(text: str) -> Result:
    numbers = Table(text, (text, "n"), ((text, "1"), (Verdict.PASS, "2")), numeric=(1,))
    whisker = Span(text, 0.9, 0.8, 0.95, baseline=0.91, threshold=0.85, text=text, note=text)
    dots = Points(text, (0.1, 0.5), (0.2, math.nan), lower=(0.1, math.nan), upper=(0.3, math.nan))
    names = (text, *(f"c{index}" for index in range(29)))
    return Result(
        command="eval",
        data={"value": 1.0},
        verdict=Verdict.FAIL,
        warnings=(text,),
        report=Report(
            title=text,
            summary=text,
            facts=(Fact(text, text),),
            sections=(numbers,),
            brief=(Table(text, (text,), ((text,),)),),
            details=(
                Bars(text, (text, "b"), (Series(text, (0.5, math.nan)),), unit=text),
                Lines(text, (text, "b", "c"), (Series(text, (1.0, math.nan, 3.0)),)),
                Matrix(text, (text,), (text,), ((3,),)),
                Matrix(text, names, names, tuple((1, *[0] * 28, 2) for _ in names)),
                Spans(text, (whisker, Span(text, math.nan)), shared=True, note=text),
                Spans(text, (whisker, Span(text, 0.5, verdict=Verdict.FAIL))),
                Plot(
                    text, text, text, (dots,), kind="dots", counts=((0.0, 0.5, 3), (0.5, 1.0, 0)), note=text
                ),
                Plot(text, text, text, (dots, dots), guide=((0.0, 0.0), (1.0, 1.0))),
                Text(text, text),
            ),
            checks=(
                Check(text, Verdict.FAIL, "0.87", ">= 0.90", text, values=((text, text),)),
                Check("drop", Verdict.UNDECIDED, "-0.2 pp", "<= 1 pp", "3,090 rows would decide"),
                Check("later", Verdict.PASS, "-", "-", skipped="no baseline yet"),
                Check("fine", Verdict.PASS, "1", "1", part=text, file=text, line=7),
            ),
            next_steps=(text,),
            gauges=(Gauge(text, 0.5, ((text, text),)), Gauge("accuracy", 0.9)),
        ),
    )
