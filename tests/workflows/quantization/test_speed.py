"""What becomes of candidates that are slower than their source; the times are not measured but told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.core.report import Result
from mlx_platform.core.settings import load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.quantize.latency import Race
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.quantize import quantize

FASTER = Race(3.0, 2.0, 1.5, 1.4, 1.6, 50)
SLOWER = Race(2.0, 2.5, 0.8, 0.75, 0.85, 50)
QUICK = Race(0.02, 0.05, 0.4, 0.38, 0.42, 50)


@pytest.fixture
def outcome_of(own_home: Path, digit_models, digit_rows, monkeypatch: pytest.MonkeyPatch):
    """Quantize the perceptron to `small.onnx`, with races that end as told, the last one for all others."""

    def run(*races: Race, **options: Any) -> Result:
        told: Iterator[Race] = iter(races)
        latest = races[-1]
        monkeypatch.setattr("mlx_platform.quantize.latency.race", lambda *_, **__: next(told, latest))
        return quantize(
            make_context(load_settings()),
            str(digit_models["perceptron"]),
            calibration=digit_rows[0],
            data=digit_rows[1],
            output=Path("small.onnx"),
            max_drop="5pp",
            **options,
        )

    return run


def speed_of(result: Result) -> dict[str, Any]:
    return {gate["metric"]: gate for gate in result.data["gates"]}.get("speedup", {})


@pytest.mark.parametrize("method", ["static", "dynamic", "auto"])
def test_what_is_slower_than_its_source_is_refused_and_the_way_out_named(outcome_of, method: str) -> None:
    result = outcome_of(SLOWER, method=method)

    assert (result.verdict, result.exit_code) == (Verdict.FAIL, 5)
    assert not Path("small.onnx").exists()
    assert (speed_of(result)["verdict"], speed_of(result)["shown"]) == ("fail", "0.80 [0.75, 0.85]")
    assert "instead of 2 ms" in speed_of(result)["message"]
    assert any("--min-speedup 0 takes any speed" in step for step in result.report.next_steps)
    assert not any("A single row is slower" in warning for warning in result.warnings)


def test_any_speed_can_be_asked_for(outcome_of) -> None:
    result = outcome_of(SLOWER, min_speedup=0.0)

    assert result.verdict is Verdict.PASS
    assert speed_of(result) == {}
    assert any("A single row is slower in int8" in warning for warning in result.warnings)
    assert "--min-speedup 0" in result.data["command"]


def test_what_is_too_quick_to_notice_is_a_warning(outcome_of) -> None:
    result = outcome_of(QUICK)

    assert result.verdict is Verdict.PASS
    assert any("too quick for that to matter" in warning for warning in result.warnings)


@pytest.mark.parametrize("method", ["fp16", "int4"])
def test_a_method_that_is_asked_for_because_of_its_size_may_be_slower(outcome_of, method: str) -> None:
    result = outcome_of(SLOWER, method=method)

    assert result.verdict is Verdict.PASS
    assert any(f"A single row is slower in {method}" in warning for warning in result.warnings)


def test_auto_puts_aside_what_is_slower(outcome_of) -> None:
    # Two races each: static twice, dynamic, fp16, int4.
    result = outcome_of(*[SLOWER] * 6, *[FASTER] * 2, SLOWER, method="auto")

    assert result.verdict is Verdict.PASS
    (chosen,) = [each for each in result.data["candidates"] if each["chosen"]]
    assert chosen["method"] == "fp16"
    assert speed_of(result)["verdict"] == "pass"


def test_a_batch_that_is_slower_although_a_row_is_faster_is_said(outcome_of) -> None:
    result = outcome_of(FASTER, SLOWER, max_evals=0)

    assert result.verdict is Verdict.PASS
    assert any(
        "Though a single row is faster in int8, 32 rows at once are 0.80 times as fast" in warning
        for warning in result.warnings
    )
