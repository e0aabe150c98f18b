import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from projects import Project
from receivers import Receiver, receiving
from support import clean_environment

from mlx_platform.core.errors import IntegrityError, UnavailableError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.courier import Courier, Delivery, make_sender
from mlx_platform.registry.journal import Journal, next_event
from mlx_platform.registry.ledger import EVENT_TAG
from mlx_platform.registry.outbox import CURSOR_PREFIX, Answer, Cursor, Message
from mlx_platform.registry.ref import JOURNAL_PREFIX
from mlx_platform.registry.version import Lineage

JOURNAL = JOURNAL_PREFIX + "digits"


def move(project: Project, to: int, alias: str = "staging") -> None:
    assert project.anew().move("digits", alias, to, kind="promote", actor="tester")


class Clock:
    """The present, as far as it is not put forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


def deliver(
    project: Project, sink: SinkSettings, *, clock: Clock | None = None, eager: bool = False
) -> Delivery:
    courier = Courier(project.settings, clock or Clock(), jitter=lambda: 0.5)
    return courier.deliver(sink, make_sender(sink, {}, project.folder), "digits", eager=eager)


def stored(project: Project, sink: str = "ops") -> str:
    return Backend(project.settings).reader.model_tags(JOURNAL).get(CURSOR_PREFIX + sink, "")


def keep(project: Project, text: str, sink: str = "ops") -> None:
    Backend(project.settings).writer.set_model_tags(JOURNAL, {CURSOR_PREFIX + sink: text})


@pytest.fixture
def moved(project: Project) -> Project:
    for to in (1, 2, 3):
        move(project, to)
    return project


def test_every_move_is_told_once_and_in_order(moved: Project) -> None:
    with receiving() as receiver:
        first = deliver(moved, receiver.sink())
        again = deliver(moved, receiver.sink())
        move(moved, 1)
        move(moved, 1, alias="production")
        third = deliver(moved, receiver.sink())

    assert [one.delivered for one in (first, again, third)] == [(1, 2, 3), (), (4, 5)]
    assert receiver.numbers == [1, 2, 3, 4, 5]
    assert [request.headers["webhook-id"] for request in receiver.requests] == [
        event.id for event in moved.anew().journal("digits").valid
    ]
    assert receiver.requests[0].data["to_label"] == moved.catalog.resolve("digits/1").label
    assert stored(moved) == Cursor(5).encode()


def test_a_failure_holds_back_what_follows_until_its_time(moved: Project) -> None:
    clock = Clock()
    with receiving(204, 503, 204) as receiver:
        first = deliver(moved, receiver.sink(), clock=clock)
        early = deliver(moved, receiver.sink(), clock=clock)
        clock.ahead = timedelta(seconds=8)
        late = deliver(moved, receiver.sink(), clock=clock)

    assert (first.delivered, len(first.standing.pending), first.standing.cursor.attempts) == ((1,), 2, 1)
    assert first.standing.cursor.error == "503 Service Unavailable"
    assert (early.delivered, len(early.standing.pending)) == ((), 2)
    assert (late.delivered, late.standing.pending) == ((2, 3), ())
    assert receiver.numbers == [1, 2, 2, 3]


def test_what_failed_is_tried_at_once_when_that_is_asked_for(moved: Project) -> None:
    with receiving(503, 204) as receiver:
        deliver(moved, receiver.sink())

        assert deliver(moved, receiver.sink(), eager=True).delivered == (1, 2, 3)


def test_a_busy_receiver_is_left_alone_as_long_as_it_asks(moved: Project) -> None:
    clock = Clock()
    with receiving(429, 204, headers={"Retry-After": "1000"}) as receiver:
        deliver(moved, receiver.sink(), clock=clock)
        clock.ahead = timedelta(seconds=990)
        assert deliver(moved, receiver.sink(), clock=clock).delivered == ()
        clock.ahead = timedelta(seconds=1100)
        assert deliver(moved, receiver.sink(), clock=clock).delivered == (1, 2, 3)


def test_an_event_that_fails_for_good_is_parked_and_blocks_nothing(moved: Project) -> None:
    with receiving(400, 400, 204) as receiver:
        sink = receiver.sink(max_attempts=2)
        deliver(moved, sink)
        second = deliver(moved, sink, eager=True)

        assert (second.parked, second.delivered) == ((1,), (2, 3))
        assert second.standing.cursor == Cursor(3, (1,), error="400 Bad Request")

        courier = Courier(moved.settings, Clock())
        sender = make_sender(sink, {}, moved.folder)
        answers = courier.send_again(sink, sender, "digits", [1, 99])
        assert answers == {1: Answer(delivered=True, said="204 No Content"), 99: None}
        assert courier.standing(sink, "digits").cursor.parked == ()
    assert receiver.numbers == [1, 1, 2, 3, 1]


def test_what_fails_again_stays_parked(moved: Project) -> None:
    with receiving(400) as receiver:
        sink = receiver.sink(max_attempts=1)
        assert deliver(moved, sink).parked == (1, 2, 3)

        sender = make_sender(sink, {}, moved.folder)
        Courier(moved.settings, Clock()).send_again(sink, sender, "digits", [2])

    assert Courier(moved.settings, Clock()).standing(sink, "digits").cursor.parked == (1, 2, 3)


def test_a_lost_compare_and_set_is_never_told(moved: Project) -> None:
    late = next_event(
        Journal(),
        model="digits",
        alias="production",
        from_version=None,
        to=2,
        digest="",
        kind="promote",
        actor="tester",
        reason="",
        evidence={},
        time=datetime.now(UTC),
        id="late",
    )
    writer = Backend(moved.settings).writer
    writer.create_version(JOURNAL, "models:/digits/2", tags={EVENT_TAG: late.encode()})
    move(moved, 1)

    with receiving() as receiver:
        deliver(moved, receiver.sink())

    assert receiver.numbers == [1, 2, 3, 5]
    assert Courier(moved.settings, Clock()).standing(receiver.sink(), "digits").pending == ()


def test_a_broken_journal_tells_nothing(moved: Project) -> None:
    with closing(sqlite3.connect(moved.database)) as database, database:
        database.execute(
            "UPDATE model_version_tags SET value = value || ' ' WHERE key = ? AND version = 3", (EVENT_TAG,)
        )

    with receiving() as receiver, pytest.raises(IntegrityError, match="journal of digits is broken"):
        deliver(moved, receiver.sink())

    assert receiver.requests == []


def test_a_new_sink_leaves_old_moves_alone_unless_it_begins_at_the_beginning(moved: Project) -> None:
    clock = Clock()
    clock.ahead = timedelta(hours=2)
    with receiving() as receiver:
        deliver(moved, receiver.sink(), clock=clock)
        assert receiver.numbers == []
        assert stored(moved) == Cursor(3).encode()

        deliver(moved, receiver.sink(name="all", start="beginning"), clock=clock)
        assert receiver.numbers == [1, 2, 3]


def test_a_sink_that_fails_at_first_sight_is_not_new_again_later(moved: Project) -> None:
    clock = Clock()
    with receiving(503, 204) as receiver:
        deliver(moved, receiver.sink(), clock=clock)
        clock.ahead = timedelta(hours=5)
        deliver(moved, receiver.sink(), clock=clock)

    assert receiver.numbers == [1, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "{", Cursor(10**6).encode(), "\x1b[2J"])
def test_a_cursor_that_cannot_be_is_made_anew(moved: Project, text: str) -> None:
    keep(moved, text)
    with receiving() as receiver:
        deliver(moved, receiver.sink())

    assert receiver.numbers == [1, 2, 3]
    assert stored(moved) == Cursor(3).encode()


def test_what_is_not_asked_for_is_passed_over_for_good(moved: Project) -> None:
    with receiving() as receiver:
        assert deliver(moved, receiver.sink(aliases=("production",))).delivered == ()
        assert deliver(moved, receiver.sink(models=("other",))).delivered == ()
        assert deliver(moved, receiver.sink()).delivered == ()
        move(moved, 1, alias="production")
        assert deliver(moved, receiver.sink(aliases=("production",))).delivered == (4,)


def test_two_machines_at_once_lose_nothing(moved: Project) -> None:
    class Other:
        """While one machine tells its first event, another one tells everything and parks the second."""

        def send(self, message: Message, *, timeout: float, now: datetime) -> Answer:  # noqa: ARG002
            keep(moved, Cursor(3, (2,)).encode())
            return Answer(delivered=True, said="")

    courier = Courier(moved.settings, Clock())
    sink = SinkSettings(name="ops")
    done = courier.deliver(sink, Other(), "digits")

    assert 1 in done.delivered
    assert courier.standing(sink, "digits").cursor.settled == 3


def test_couriers_of_one_machine_take_turns(moved: Project) -> None:
    with receiving() as receiver:
        threads = [threading.Thread(target=deliver, args=(moved, receiver.sink())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert receiver.numbers == [1, 2, 3]


def test_a_courier_that_is_kept_waiting_says_so(moved: Project) -> None:
    entered, over = threading.Event(), threading.Event()

    class Slow:
        def send(self, message: Message, *, timeout: float, now: datetime) -> Answer:  # noqa: ARG002
            entered.set()
            over.wait(20)
            return Answer(delivered=True, said="")

    sink = SinkSettings(name="ops")
    thread = threading.Thread(target=Courier(moved.settings, Clock()).deliver, args=(sink, Slow(), "digits"))
    thread.start()
    entered.wait(20)
    try:
        with pytest.raises(UnavailableError, match="delivering to ops"):
            Courier(moved.settings, Clock()).deliver(sink, Slow(), "digits", patience=0.05)
    finally:
        over.set()
        thread.join()


def test_the_time_for_all_of_it_is_kept(moved: Project) -> None:
    with receiving() as receiver:
        sink = receiver.sink()
        sender = make_sender(sink, {}, moved.folder)
        done = Courier(moved.settings, Clock()).deliver(sink, sender, "digits", seconds=0.0)

    assert (done.delivered, len(done.standing.pending)) == ((), 3)
    assert receiver.requests == []


def test_models_without_a_journal_are_not_looked_at(project: Project) -> None:
    courier = Courier(project.settings, Clock())
    assert courier.models() == ()
    with receiving() as receiver:
        assert deliver(project, receiver.sink()).standing.pending == ()

    move(project, 1)
    assert courier.models() == ("digits",)


SCRIPT = """
import sys
from mlx_platform.core.clock import system_clock
from mlx_platform.core.settings import SinkSettings, load_settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.courier import Courier, make_sender
settings = load_settings(overrides={"registry.uri": sys.argv[1]})
sink = SinkSettings(name="ops", url=sys.argv[2])
done = Courier(settings, system_clock).deliver(sink, make_sender(sink, {}, settings.folder), sys.argv[3])
print(*done.delivered, "mlflow" in sys.modules)
"""


def deliver_alone(folder: Path, uri: str, receiver: Receiver, name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, uri, receiver.url, name],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_a_file_is_served_without_mlflow(moved: Project) -> None:
    with receiving() as receiver:
        assert deliver_alone(moved.folder, "sqlite:///mlx.db", receiver, "digits") == "1 2 3 False"


def test_a_server_is_served_over_rest_without_mlflow(project: Project, mlflow_server: str) -> None:
    settings = replace(project.settings, registry=replace(project.settings.registry, uri=mlflow_server))
    name = "outbox"
    catalog = Catalog(settings)
    catalog.register(name, project.package(1), Lineage())
    catalog.register(name, project.package(2), Lineage())
    for to in (1, 2):
        catalog.move(name, "staging", to, kind="promote", actor="tester")

    with receiving() as receiver:
        assert deliver_alone(project.folder, mlflow_server, receiver, name) == "1 2 False"
        assert deliver_alone(project.folder, mlflow_server, receiver, name) == "False"

    assert receiver.numbers == [1, 2]
    tags = Backend(settings).reader.model_tags(JOURNAL_PREFIX + name)
    assert tags[CURSOR_PREFIX + "ops"] == Cursor(2).encode()
