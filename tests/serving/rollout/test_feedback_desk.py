"""What `POST /feedback` takes, what it refuses, and where it goes."""

import asyncio
import gzip
import threading
from datetime import UTC, datetime

import orjson
import pytest

from mlx_platform.core.serving_settings import FeedbackSettings
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.rollout.feedback_desk import FeedbackDesk, parse_feedback
from mlx_platform.traffic.feedback import MOST_OUTCOMES, FeedbackWriter, gather, read_feedback

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
ENTRY = {"id": "r-1", "outcomes": {"bought": True}}
HOSTILE = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"feedback": null}',
    b'{"feedback": {}}',
    b'{"feedback": []}',
    b'{"feedback": [null]}',
    b'{"feedback": ["r-1"]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": NaN}}]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1e999}}]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1}, "outcomes": {"a": 2}}]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1, "a": 2}}]}',
    b'{"feedback": [{"id": "\\ud800", "outcomes": {"a": 1}}]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1}, "version": 3}]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1}, "version": ""}]}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1}}], "source": 5}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1}}], "other": 5}',
    b'{"feedback": [{"id": "r", "outcomes": {"a": 123456789012345678901234567890}}]}',
    b'{"feedback": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'{"feedback": [' + b"{}," * 200_000 + b"{}]}",
    b'{"feedback": [{"id": "r", "outcomes": {' + b'"a":1,' * 100_000 + b'"a":1}}]}',
    b"\xff\xfe",
    b'{"feedback": [{"id": "r", "outcomes": {"a": 1}}]} more',
]


class Counts:
    def __init__(self):
        self.taken = []

    def take(self, entry):
        self.taken.append((entry.request_id, entry.version))
        return "counted" if entry.request_id == "r-1" else "unknown"


def body(*entries, **members):
    return orjson.dumps({"feedback": list(entries) or [ENTRY]} | members)


def parse(content, **limits):
    return parse_feedback(content, FeedbackSettings(**limits), lambda: NOON)


def refused(content, **limits):
    with pytest.raises(Refusal) as caught:
        parse(content, **limits)
    return caught.value


@pytest.fixture
def folder(tmp_path):
    log = tmp_path / "traffic"
    log.mkdir()
    return log


@pytest.fixture
def desk(folder):
    made = FeedbackDesk(Counts(), FeedbackWriter(folder), FeedbackSettings(), lambda: NOON)
    yield made
    made.close()


@pytest.mark.parametrize("content", HOSTILE)
def test_what_is_no_feedback_is_refused_whole(content):
    assert refused(content, max_body_bytes=16 * 1024 * 1024).status == 400


def test_a_refusal_names_the_entry_and_repeats_nothing_of_it():
    refusal = refused(body(ENTRY, {"id": "secret" * 50, "outcomes": {"a": 1}}))
    assert refusal.message.startswith("Entry 1: ")
    assert "secret" not in refusal.message


def test_source_and_version_and_time_are_read():
    entry = {**ENTRY, "version": "7", "time": "2026-03-08T10:00:00Z"}
    first, second = parse(body(entry, {**ENTRY, "source": "shop"}, source="till"))
    assert (first.version, first.source, first.time.hour) == ("7", "till", 10)
    assert (second.version, second.source, second.time) == ("", "shop", NOON)


@pytest.mark.parametrize(("count", "taken"), [(3, True), (4, True), (5, False)])
def test_so_many_entries_and_no_more(count, taken):
    content = body(*[ENTRY] * count)
    if taken:
        assert len(parse(content, max_entries=4)) == count
    else:
        assert refused(content, max_entries=4).status == 400


@pytest.mark.parametrize(("more", "taken"), [(-1, True), (0, True), (1, False)])
def test_so_many_bytes_and_no_more(more, taken):
    content = body()
    content += b" " * (1024 + more - len(content))
    if taken:
        assert len(parse(content, max_body_bytes=1024)) == 1
    else:
        assert refused(content, max_body_bytes=1024).status == 413


def test_the_fullest_body_that_the_limits_allow_is_taken():
    outcomes = {f"n{n}": True for n in range(MOST_OUTCOMES)}
    entry = {
        "id": "{[:" * 42,
        "outcomes": outcomes,
        "time": "2026-03-08T10:00:00Z",
        "source": "s",
        "version": "3",
    }
    content = body(*[entry] * 2000, source="all")
    assert len(parse(content, max_entries=2000, max_body_bytes=16 * 1024 * 1024)) == 2000


def test_what_is_taken_is_written_and_counted(desk, folder):
    other = {"id": "r-2", "outcomes": {"label": "setosa"}, "version": "3"}
    answer = asyncio.run(desk.take(body(ENTRY, other)))
    assert answer["received"] == answer["kept"] == 2
    assert (answer["fates"]["counted"], answer["fates"]["unknown"], answer["fates"]["late"]) == (1, 1, 0)
    assert desk._counts.taken == [("r-1", ""), ("r-2", "3")]
    entries, stats = read_feedback(folder)
    assert gather(entries, stats) == {"r-1": {"bought": True}, "r-2": {"label": "setosa"}}
    assert {sample.name: sample.value for sample in desk.samples()} == {
        "mlx_feedback_kept": 2,
        "mlx_feedback_lost": 0,
    }


def test_a_refused_body_is_neither_written_nor_counted(desk, folder):
    with pytest.raises(Refusal):
        asyncio.run(desk.take(body(ENTRY, {"id": "r-2"})))
    assert desk._counts.taken == []
    assert list(read_feedback(folder)[0]) == []


def test_feedback_counts_although_the_disk_is_full(desk, folder, monkeypatch, caplog):
    def full(_entries):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(desk._writer, "append", full)
    answers = [asyncio.run(desk.take(body())) for _ in range(3)]
    assert [answer["kept"] for answer in answers] == [0, 0, 0]
    assert answers[0]["fates"]["counted"] == 1
    assert desk.lost == 3
    assert caplog.text.count("is not being kept") == 1
    monkeypatch.undo()
    assert asyncio.run(desk.take(body()))["kept"] == 1
    assert "kept again" in caplog.text


def test_while_too_much_is_being_written_more_is_refused_for_a_while(desk, monkeypatch):
    may_go = threading.Event()
    monkeypatch.setattr(desk._writer, "append", lambda _entries: may_go.wait(20))

    async def scenario():
        waiting = [asyncio.ensure_future(desk.take(body())) for _ in range(16)]
        await asyncio.sleep(0.05)
        with pytest.raises(Refusal) as caught:
            await desk.take(body())
        may_go.set()
        await asyncio.gather(*waiting)
        return caught.value

    refusal = asyncio.run(scenario())
    assert (refusal.status, refusal.retry_after) == (429, 1)


def test_a_server_without_a_traffic_log_keeps_nothing_and_says_so():
    desk = FeedbackDesk(Counts(), None, FeedbackSettings())
    answer = asyncio.run(desk.take(body()))
    desk.close()
    assert (answer["received"], answer["kept"], answer["fates"]["counted"]) == (1, 0, 1)


@pytest.fixture(scope="module")
def server(start_lasting_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("log") / "traffic"
    return start_lasting_server("table", traffic=folder), folder


def test_a_server_takes_feedback_under_the_id_that_it_gave_an_answer(server):
    running, folder = server
    reply = running.post("/predict", {"rows": [{"a": 1, "b": 2, "c": 3, "d": 4}]})
    told = {"id": reply.headers["x-request-id"], "outcomes": {"bought": True, "price": 9.5}}
    answer = running.post("/feedback", {"feedback": [told], "source": "till"})
    assert answer.status == 200
    assert answer.json["received"] == answer.json["kept"] == 1
    assert answer.json["fates"]["unknown"] == 1  # no rollout goes on
    entries, stats = read_feedback(folder)
    assert gather(entries, stats)[told["id"]] == {"bought": True, "price": 9.5}
    assert running.metric("mlx_feedback_kept_total") >= 1
    assert running.metric("mlx_feedback_total", fate="unknown") >= 1


@pytest.mark.parametrize("content", HOSTILE)
def test_no_body_brings_a_server_to_fail(server, content):
    running, _ = server
    assert running.post("/feedback", content).status == 400


def test_a_form_an_encoding_and_another_method(server):
    running, _ = server
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert running.request("POST", "/feedback", b"id=5", form).status == 415
    packed = gzip.compress(body())
    assert running.post("/feedback", packed, {"Content-Encoding": "gzip"}).status == 200
    assert running.post("/feedback", body() + b" " * 2**20).status == 413
    assert running.get("/feedback").status == 405
