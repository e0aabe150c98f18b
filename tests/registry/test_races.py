"""Eight processes at once: first use, registration, and moves of one alias, on every kind of registry."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import Project
from racers import MODELS, RACERS, Course, Outcome, Result, add_targets, moves, race
from services import Postgres
from support import clean_environment

from mlx_platform.inference.package import open_package, with_file

# Eight clients of MLflow on a small machine that does other things as well.
pytestmark = pytest.mark.timeout(900)

REGISTRIES = ("sqlite", "sqlite with mlflow", "postgresql", "server")


@pytest.fixture(scope="module")
def folder(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages and no registry."""
    folder = tmp_path_factory.mktemp("race")
    shutil.copytree(template / "packages" / "1", folder / "packages" / "1")
    for racer in range(RACERS):
        root = folder / "packages" / f"own-{racer}"
        shutil.copytree(folder / "packages" / "1", root)
        with_file(open_package(root), "assets/own.txt", str(racer).encode())
    return folder


@pytest.fixture(scope="module")
def first(folder: Path) -> Result:
    """First use of a SQLite registry."""
    course = Course(folder, f"sqlite:///{folder}/first.db")
    return race(course, ["create", "same_content", "own_content", "stay digits", "other_alias digits"])


@pytest.fixture(scope="module", params=REGISTRIES)
def result(request: pytest.FixtureRequest, folder: Path) -> Result:
    """Rounds of moves, and then of steps of a rollout, on a registry that is there."""
    places: dict[str, Callable[[], str]] = {
        "postgresql": lambda: request.getfixturevalue("postgres").database(),
        "server": lambda: request.getfixturevalue("mlflow_server"),
    }
    kind = request.param
    uri = places.get(kind, lambda: f"sqlite:///{folder}/{kind.replace(' ', '-')}.db")()
    course = Course(folder, uri, by_mlflow=RACERS // 2 if kind == "sqlite with mlflow" else 0)
    course.catalog().create()
    for model in MODELS:
        add_targets(course.catalog(), f"race-{model}")
    return race(course, moves("race-"))


def values(outcomes: list[Outcome]) -> list[object]:
    return [outcome.value for outcome in outcomes if outcome.code == 0]


def test_a_registry_that_all_create_at_once_is_created(first: Result) -> None:
    (outcomes,) = first.named("create")

    assert [outcome.message for outcome in outcomes if outcome.code] == []


def test_a_database_that_all_create_at_once_is_created(folder: Path, postgres: Postgres) -> None:
    course = Course(folder, postgres.database(tables=False))

    ((_, created), (_, registered)) = race(course, ["create", "same_content"]).rounds

    assert [outcome.message for outcome in created + registered if outcome.code] == []
    assert len({number for number, _ in values(registered)}) == 1


def test_the_same_content_becomes_one_version(first: Result) -> None:
    (outcomes,) = first.named("same_content")

    assert sorted(values(outcomes)) == [(1, False)] * (RACERS - 1) + [(1, True)]


def test_no_version_is_lost_and_no_number_is_given_twice(first: Result) -> None:
    (outcomes,) = first.named("own_content")

    assert sorted(values(outcomes)) == [(number, True) for number in range(2, RACERS + 2)]
    assert len(first.course.catalog().versions("digits", limit=100)) == RACERS + 1


def test_moves_of_other_aliases_are_no_conflict(first: Result) -> None:
    (outcomes,) = first.named("other_alias digits")

    assert len(values(outcomes)) == RACERS
    assert first.course.catalog().holders("digits").items() >= {f"canary-{n}": 1 for n in range(8)}.items()


def test_of_all_who_expect_the_same_holder_one_wins_and_the_others_are_told(result: Result) -> None:
    for model in MODELS:
        for outcomes, won in zip(
            result.named(f"move race-{model}"), result.winners(f"move race-{model}"), strict=True
        ):
            lost = [outcome.message for outcome in outcomes if outcome.code == 4]
            assert (len(won), len(lost)) == (1, RACERS - 1), outcomes
            assert all(f"race-{model}@production" in message for message in lost)


def test_an_alias_that_came_back_is_not_where_it_was(result: Result) -> None:
    # Those who wait for the alias to come may move it after those who saw it there, and so on; but each
    # winner started from where the one before it ended, and nobody else was told that they moved it.
    for model in MODELS:
        journal = result.course.catalog().journal(f"race-{model}")
        valid = journal.moves("production")
        before = [None, *(event.to_version for event in valid)]
        won = [
            number
            for method in ("move", "swing")
            for numbers in result.winners(f"{method} race-{model}")
            for number in numbers
        ]

        assert [event.from_version for event in valid] == before[:-1]
        assert sorted(won) == [event.number for event in valid]
        assert len(journal.events) > len(valid)  # some were written, and did not count


def test_of_all_who_would_take_the_next_step_of_a_rollout_one_does(result: Result) -> None:
    for model in MODELS:
        ((won, outcomes),) = zip(
            result.winners(f"transit race-{model}"), result.named(f"transit race-{model}"), strict=True
        )
        lost = [outcome.message for outcome in outcomes if outcome.code == 4]
        ((event,),) = result.course.catalog().rollouts(f"race-{model}")

        assert (len(won), len(lost)) == (1, RACERS - 1), outcomes
        assert all("was faster" in message for message in lost)
        assert [event.number] == won
        assert event.actor == f"racer-{event.evidence['rollout']['step']}"


def test_the_journal_and_mlflow_agree_in_the_end(result: Result) -> None:
    for model in MODELS:
        assert result.course.catalog().differences(f"race-{model}") == ()


def test_moving_to_the_holder_moves_nothing(first: Result) -> None:
    (outcomes,) = first.named("stay digits")

    assert len([outcome for outcome in outcomes if outcome.value is not None]) <= 1
    assert all(outcome.code in {0, 4} for outcome in outcomes)


def test_promotions_from_the_command_line_have_one_winner_and_no_traceback(project: Project) -> None:
    racers = 4
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "mlx_platform.cli", "promote", f"digits/{2 + racer % 2}"),
                *("--to", "production", "--expect", "1", "--override", "all", "--reason", f"racer {racer}"),
            ],
            cwd=project.folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for racer in range(racers)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    codes = sorted(process.returncode for process in processes)

    assert codes == [0] + [4] * (racers - 1), outputs
    assert not any("Traceback" in err for _, err in outputs)
    assert len(project.anew().history("digits")) == 2
    assert project.anew().differences("digits") == ()
