import math
from pathlib import Path

import orjson
import pytest

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.quantize.sensitivity import Distance
from mlx_platform.quantize.state import FILE, key_of, open_state

KEY = key_of("model", "rows", 1.0)


def test_what_one_process_measured_another_recalls(tmp_path: Path) -> None:
    with open_state(tmp_path / "state", KEY) as state:
        state.keep(frozenset({"a", "b"}), Distance(0.25, 0.5))
        state.keep(frozenset(), Distance(1e-9, 0.0))

    with open_state(tmp_path / "state", KEY) as again:
        assert again.recall(frozenset({"b", "a"})) == Distance(0.25, 0.5)
        assert again.recall(frozenset()) == Distance(1e-9, 0.0)
        assert again.recall(frozenset({"a"})) is None
        assert again.measured == 2


def test_an_infinite_distance_is_recalled_as_such(tmp_path: Path) -> None:
    with open_state(tmp_path, KEY) as state:
        state.keep(frozenset({"a"}), Distance(math.inf, 1.0))

    with open_state(tmp_path, KEY) as again:
        assert again.recall(frozenset({"a"})) == Distance(math.inf, 1.0)


def test_a_candidate_that_was_seen_before_is_no_new_look(tmp_path: Path) -> None:
    with open_state(tmp_path, KEY) as state:
        assert [state.look(name) for name in ("x", "y", "x")] == [0, 1, 0]

    with open_state(tmp_path, KEY) as again:
        assert [again.look(name) for name in ("y", "z")] == [1, 2]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    with open_state(None, KEY) as state:
        state.keep(frozenset({"a"}), Distance(0.1, 0.1))
        assert state.recall(frozenset({"a"})) == Distance(0.1, 0.1)

    assert list((tmp_path / "here").iterdir()) == []


def test_the_state_of_another_search_is_refused_and_left_alone(tmp_path: Path) -> None:
    with open_state(tmp_path, KEY) as state:
        state.look("x")
    before = (tmp_path / FILE).read_bytes()

    other = key_of("model", "rows", 2.0)
    with pytest.raises(UsageError, match="another model, other rows"), open_state(tmp_path, other):
        pass
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        orjson.dumps({"schema": "mlx.search/v1", "key": KEY}),
        orjson.dumps({"schema": "mlx.search/v1", "key": KEY, "looks": [], "measured": [{"float": 3}]}),
        orjson.dumps({"schema": "mlx.search/v1", "key": KEY, "looks": [], "measured": 7}),
    ],
)
def test_a_damaged_state_is_named_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(UsageError, match="is no state of a search"), open_state(tmp_path, KEY):
        pass
    assert (tmp_path / FILE).read_bytes() == content


def test_two_searches_do_not_share_a_state_at_once(tmp_path: Path) -> None:
    busy = pytest.raises(UnavailableError, match="searching with the state")
    with open_state(tmp_path, KEY), busy, open_state(tmp_path, KEY):
        pass
