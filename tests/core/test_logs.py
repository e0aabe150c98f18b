import json
import logging
import re
import warnings
from datetime import datetime, timedelta

import pytest

from mlx_platform.core.logs import log_lines

OURS = logging.getLogger("mlx_platform.serving.somewhere")
FOREIGN = logging.getLogger("foreign")


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


@pytest.fixture
def tokyo(monkeypatch):
    """Local time is nine hours ahead of UTC, whatever the machine says."""
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_json_line_has_the_moment_in_both_zones(capsys, tokyo):
    with log_lines("json"):
        OURS.info("Ready on %s.", "here", extra={"fields": {"port": 80, "ready": True, "url": "x\x1b"}})
    (line,) = lines(capsys)
    assert (line["level"], line["logger"], line["message"]) == ("info", OURS.name, "Ready on here.")
    assert line["fields"] == {"port": 80, "ready": True, "url": "x\\u001b"}
    assert line["time"].endswith("Z")
    assert line["local_time"].endswith("+09:00")
    utc, local = datetime.fromisoformat(line["time"]), datetime.fromisoformat(line["local_time"])
    assert utc == local
    assert local.utcoffset() == timedelta(hours=9)


def test_foreign_text_cannot_break_a_line_or_fill_the_log(capsys):
    with log_lines("json"):
        FOREIGN.warning("a\nb\x1b[2J\u2028\u202e%s", "x" * 100_000)
    (line,) = lines(capsys)
    assert "\n" not in line["message"]
    assert "\\u001b" in line["message"]
    assert len(line["message"]) < 1100


def test_an_error_has_its_traceback_in_the_same_line(capsys):
    with log_lines("json"):
        try:
            int("what went wrong")
        except ValueError:
            OURS.exception("It failed.")
    (line,) = lines(capsys)
    assert line["message"] == "It failed."
    assert line["traceback"].startswith("Traceback (most recent call last):")
    assert "ValueError: invalid literal" in line["traceback"]


def test_json_has_what_is_no_warning_of_ours_only_and_warnings_of_python(capsys):
    with log_lines("json"):
        FOREIGN.info("chatter")
        OURS.info("news")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(capture=False)
            logging.captureWarnings(capture=True)
            warnings.warn("old habit", stacklevel=1)
    news, habit = lines(capsys)
    assert news["message"] == "news"
    assert "old habit" in habit["message"]


def test_a_plain_line_has_both_zones_and_leaves_out_what_is_no_warning(capsys, tokyo):
    with log_lines("text"):
        OURS.info("chatter")
        OURS.warning("Mind %s.", "this\x1b")
    written = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ \(\d\d:\d\d:\d\d JST\) warning: Mind this\\u001b\.\n", written
    )


@pytest.mark.parametrize("style", ["text", "json"])
def test_afterwards_logging_is_as_it_was(style):
    root, ours = logging.getLogger(), logging.getLogger("mlx_platform")
    before = (list(root.handlers), ours.level, warnings.showwarning)
    with log_lines(style):
        assert list(root.handlers) != before[0]
    assert (list(root.handlers), ours.level, warnings.showwarning) == before
