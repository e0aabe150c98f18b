from datetime import UTC, datetime

import pytest

from mlx_platform.evaluation.looks import PREFIX, count_looks, key_of, tag_of

NOW = datetime(2030, 1, 2, tzinfo=UTC)
KEY = key_of("data", "gates", "baseline")


def test_looks_add_up_over_versions_and_repetitions():
    first = count_looks(KEY, {}, [])
    again = count_looks(KEY, tag_of(first, NOW), [])
    other = count_looks(KEY, {}, [tag_of(again, NOW), {}, {"mlx.label": "x"}])

    assert (first.count, first.versions, first.warning) == (1, 1, "")
    assert (again.count, again.versions, again.mine, again.warning) == (2, 1, 2, "")
    assert (other.count, other.versions, other.mine) == (3, 2, 1)
    assert "look 3 " in other.warning
    assert "2 versions" in other.warning
    assert other.document() == {"key": KEY, "count": 3, "versions": 2, "this_version": 1}


def test_other_rows_gates_or_baselines_are_other_looks():
    keys = {key_of(*words) for words in (("a", "b", "c"), ("x", "b", "c"), ("a", "x", "c"), ("a", "b", ""))}

    assert len(keys) == 4
    assert count_looks(key_of("x", "gates", "baseline"), tag_of(count_looks(KEY, {}, []), NOW), []).count == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"looks": true}', '{"looks": -3}', '{"looks": 1e9}', '{"looks": "9"}', "9" * 5000],
)
def test_a_tag_that_says_no_number_of_looks_counts_for_none(text):
    assert count_looks(KEY, {PREFIX + KEY: text}, [{PREFIX + KEY: text}]).count == 1
