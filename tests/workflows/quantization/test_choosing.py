from types import SimpleNamespace
from typing import Any

import pytest

from mlx_platform.workflows.quantization.choosing import SHARES, in_order


def candidate(name: str, method: str, score: float, divergence: float) -> Any:
    """As much of a candidate as its place in line depends on."""
    return SimpleNamespace(
        name=name,
        made=SimpleNamespace(method=method),
        distance=SimpleNamespace(divergence=divergence),
        score=score,
        reverted=frozenset(),
    )


STATIC = candidate("static", "static", 0.11, 0.011)
PERCENTILE = candidate("percentile", "static", 0.1, 0.24)
DYNAMIC = candidate("dynamic", "dynamic", 0.2, 0.01)
INT4 = candidate("int4", "int4", 0.3, 0.02)
FP16 = candidate("fp16", "fp16", 0.5, 0.0001)


@pytest.mark.parametrize(
    ("pool", "order"),
    [
        ([], []),
        ([FP16], ["fp16"]),
        ([PERCENTILE, STATIC], ["static", "percentile"]),
        ([FP16, PERCENTILE, STATIC, DYNAMIC], ["static", "dynamic", "fp16", "percentile"]),
        ([FP16, INT4, PERCENTILE, STATIC, DYNAMIC], ["static", "dynamic", "fp16", "int4", "percentile"]),
    ],
)
def test_each_method_is_seen_before_another_of_the_same_and_the_safest_within_the_looks(pool, order) -> None:
    found = [each.name for each in in_order(pool)]

    assert found == order
    assert not pool or "fp16" not in found or "fp16" in found[: len(SHARES)]
