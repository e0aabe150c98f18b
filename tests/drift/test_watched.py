import numpy as np

from mlx_platform.drift.watched import Watched


def test_codes_in_a_tensor_are_compared_as_the_categories_they_stand_for() -> None:
    watched = Watched(None, ("plan",), {"plan": ("x", 1)}, None, None, {"plan": ("basic", "pro")})

    found = watched.inputs({"x": np.array([[7.0, 0.0], [8.0, 1.0], [9.0, 5.0], [9.0, np.nan]])})

    assert found["plan"].tolist() == ["basic", "pro", "(unknown)", "(unknown)"]
