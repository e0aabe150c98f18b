import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from support import RunCommand

from mlx_platform.traffic.feedback import gather, read_feedback


@contextmanager
def listening(status: int = 200, answer: Any = None) -> Iterator[tuple[str, list[Any]]]:
    """Somebody who takes feedback in, and what they were told."""
    told: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.append((self.path, body))
            count = len(body["feedback"])
            said = answer or {"received": count, "kept": 0, "fates": {"counted": count - 1, "unknown": 1}}
            content = orjson.dumps(said)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", told
    finally:
        server.shutdown()
        server.server_close()


def entries(path: Path, count: int) -> Path:
    lines = (orjson.dumps({"id": f"r{number}", "outcomes": {"clicked": True}}) for number in range(count))
    path.write_bytes(b"\n".join(lines))
    return path


def test_every_server_is_told_everything_in_requests_of_a_size_that_it_takes(
    mlx: RunCommand, tmp_path: Path
) -> None:
    path = entries(tmp_path / "clicks.jsonl", 1001)
    with listening() as (one, first), listening() as (two, second):
        outcome = mlx("feedback", path, "--server", one, "--server", two, "--json")

    assert outcome.code == 0, outcome.err
    for told in (first, second):
        assert [place for place, _ in told] == ["/feedback"] * 3
        assert sum(len(body["feedback"]) for _, body in told) == 1001
    assert outcome.data["servers"][0] == {"url": one, "fates": {"counted": 998, "unknown": 3}}


def test_a_table_has_a_column_for_each_outcome_and_says_nothing_in_empty_cells(
    mlx: RunCommand, tmp_path: Path
) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(
        "id,time,ordered,revenue,label\n"
        "a1,2026-12-01T04:00:00Z,true,12.5,cat\n"
        "a2,2026-12-01T04:00:01Z,false,,\n"
        "a3,2026-12-01T04:00:02Z,,3,\n"
    )
    with listening() as (url, told):
        assert mlx("feedback", path, "--server", url).code == 0

    ((_, body),) = told
    assert [(entry["id"], entry["outcomes"]) for entry in body["feedback"]] == [
        ("a1", {"ordered": True, "revenue": 12.5, "label": "cat"}),
        ("a2", {"ordered": False}),
        ("a3", {"revenue": 3}),
    ]
    assert body["feedback"][2]["time"] == "2026-12-01T04:00:02Z"


def test_the_version_that_answered_is_told_to_one_server_and_never_to_several(
    mlx: RunCommand, tmp_path: Path
) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("id,version,ordered\na1,3,true\na2,,false\n")
    with listening() as (one, first), listening() as (two, second):
        assert mlx("feedback", path, "--server", one).code == 0
        assert mlx("feedback", path, "--server", one, "--server", two).code == 0

    versions = [[entry.get("version") for entry in body["feedback"]] for _, body in first + second]
    assert versions == [["3", None], [None, None], [None, None]]


def test_entries_are_kept_beside_a_traffic_log(mlx: RunCommand, tmp_path: Path) -> None:
    log = tmp_path / "traffic"
    log.mkdir()
    path = entries(tmp_path / "clicks.jsonl", 3)

    outcome = mlx("feedback", path, "--traffic", log, "--source", "reviewers", "--json")

    assert (outcome.code, outcome.data["kept"]) == (0, 3)
    found, stats = read_feedback(log)
    told = list(found)
    assert {entry.source for entry in told} == {"reviewers"}
    assert gather(told, stats) == {f"r{number}": {"clicked": True} for number in range(3)}
    assert all((datetime.now(UTC) - entry.time).total_seconds() < 3600 for entry in told)
    assert mlx("feedback", path, "--traffic", tmp_path / "nothing").code == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": "a", "outcomes": {"x": 1}}\n{"id": "b"}', "line 2: The outcomes"),
        ('{"id": "a", "outcomes": {"x": null}}', "line 1: An outcome is"),
        ("[]", "line 1: An entry is an object"),
        ("{", "line 1: this is no JSON"),
        ("\n", "holds no entries"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named_before_anybody_is_told(
    mlx: RunCommand, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text(text)
    with listening() as (url, told):
        outcome = mlx("feedback", path, "--server", url)

    assert outcome.code == 2
    assert said in outcome.err
    assert told == []


def test_what_cannot_be_told_is_said(mlx: RunCommand, tmp_path: Path) -> None:
    path = entries(tmp_path / "f.jsonl", 2)

    assert mlx("feedback", path).code == 2
    assert mlx("feedback", path, "--server", "x", "--traffic", tmp_path).code == 2
    assert mlx("feedback", tmp_path / "no.jsonl", "--server", "http://127.0.0.1:1").code == 3
    away = mlx("feedback", path, "--server", "http://127.0.0.1:1")
    assert away.code == 9
    assert "Telling it all again is safe" in away.err
    assert mlx("feedback", path, "--server", "ftp://host").code == 2


@pytest.mark.parametrize(
    ("status", "answer", "code"),
    [
        (429, {"error": "Too much."}, 9),
        (400, {"error": "Not this."}, 2),
        (404, ["nobody"], 2),
        (200, {"other": 1}, 2),
    ],
)
def test_a_refusal_is_told_with_the_words_of_the_server(
    mlx: RunCommand, tmp_path: Path, status: int, answer: Any, code: int
) -> None:
    with listening(status, answer) as (url, _):
        outcome = mlx("feedback", entries(tmp_path / "f.jsonl", 2), "--server", url)

    assert outcome.code == code
    assert answer["error"] in outcome.err if "error" in answer else "none of mlx serve" in outcome.err
