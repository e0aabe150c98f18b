import shlex
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.quantize.rule import parse_rule
from mlx_platform.quantize.search import Limits
from mlx_platform.quantize.target import AVX2
from mlx_platform.workflows.quantization.request import MAX_EVALS, MAX_MINUTES, Request
from mlx_platform.workflows.quantization.wishes import Wishes


def request_of(**changed: Any) -> Request:
    given: dict[str, Any] = {
        "ref": "digits/2",
        "calibration": Path("my rows/c.parquet"),
        "data": Path("t.parquet"),
        "label": None,
        "method": "static",
        "target": AVX2,
        "rule": parse_rule("minmax"),
        "max_drop": None,
        "wishes": Wishes(),
        "limits": Limits(MAX_EVALS, 60 * MAX_MINUTES),
        "resume": None,
        "keep_failed": False,
        "output": None,
    }
    return Request(**(given | changed))


def test_the_command_repeats_what_was_asked_for_and_nothing_else() -> None:
    words = shlex.split(request_of().command())

    assert words[:3] == ["mlx", "quantize", "digits/2"]
    assert words[words.index("--calibration") + 1] == "my rows/c.parquet"
    assert not {"--max-drop", "--min-speedup", "--max-evals", "--max-minutes", "--output"} & set(words)


def test_the_command_repeats_every_limit() -> None:
    asked = request_of(
        label="digit",
        max_drop="2pp",
        wishes=Wishes(1.4, 0.3),
        rule=parse_rule("percentile:99.9"),
        limits=Limits(5, 90.0),
        output=Path("out.onnx"),
    )

    words = shlex.split(asked.command())

    pairs = dict(zip(words[3::2], words[4::2], strict=True))
    assert pairs["--max-drop"] == "2pp"
    assert (pairs["--min-speedup"], pairs["--max-size-ratio"]) == ("1.4", "0.3")
    assert pairs["--calibration-method"] == "percentile:99.9"
    assert pairs["--max-minutes"] == "1.5"
    assert (pairs["--max-evals"], pairs["--output"], pairs["--label"]) == ("5", "out.onnx", "digit")


def test_auto_tries_every_method() -> None:
    assert request_of(method="auto").methods == ("static", "dynamic", "fp16", "int4")
    assert request_of(method="fp16").methods == ("fp16",)


@pytest.mark.parametrize("limits", [Limits(-1, 60.0), Limits(5, 0.0), Limits(5, float("inf"))])
def test_limits_that_cannot_be_meant_are_refused(limits: Limits) -> None:
    with pytest.raises(UsageError, match="--max-"):
        request_of(limits=limits).check()
