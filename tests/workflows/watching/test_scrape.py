import pytest

from mlx_platform.core.errors import UnavailableError
from mlx_platform.workflows.watching.scrape import parse

PAGE = b"""runs_total{worker="0",kind="a"} 3
runs_total{worker="1",kind="a"} 4
runs_total{worker="1",kind="b"} 5
plain 1
"""


def test_samples_are_found_by_name_and_labels():
    page = parse(PAGE)
    assert page.total("runs_total") == 12
    assert page.total("runs_total", worker="1") == 9
    assert page.total("runs_total", worker="1", kind="a") == 4
    assert page.total("other") == 0
    assert page.by("kind", "runs_total") == {"a": 7, "b": 5}
    assert page.by("worker", "plain") == {}


def test_a_page_that_cannot_be_read_is_said():
    with pytest.raises(UnavailableError, match="cannot be read"):
        parse(b"a b c\n")
    with pytest.raises(UnavailableError, match="cannot be read"):
        parse(b"\xff\n")
