"""Eight processes at once, from a folder without a registry to moves of one alias."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from projects import Project
from racers import RACERS, Outcome, Rounds, race
from support import clean_environment

from mlx_platform.core.settings import load_settings
from mlx_platform.inference.package import open_package, with_file
from mlx_platform.registry.catalog import Catalog


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
def rounds(folder: Path) -> Rounds:
    return race(folder)


@pytest.fixture
def catalog(rounds: Rounds, folder: Path) -> Catalog:
    return Catalog(load_settings(start=folder, environment={}))


def values(outcomes: list[Outcome]) -> list[object]:
    return [outcome.value for outcome in outcomes if outcome.code == 0]


def test_a_registry_that_all_create_at_once_is_created(rounds: Rounds) -> None:
    assert [outcome.message for outcome in rounds["create"] if outcome.code] == []


def test_the_same_content_becomes_one_version(rounds: Rounds) -> None:
    found = values(rounds["same content"])

    assert sorted(found) == [(1, False)] * (RACERS - 1) + [(1, True)]


def test_no_version_is_lost_and_no_number_is_given_twice(rounds: Rounds, catalog: Catalog) -> None:
    found = values(rounds["own content"])

    assert sorted(found) == [(number, True) for number in range(2, RACERS + 2)]
    assert len(catalog.versions("digits", limit=100)) == RACERS + 1


@pytest.mark.parametrize("name", ["first holder", "second holder"])
def test_of_all_who_expect_the_same_holder_one_wins_and_the_others_are_told(
    rounds: Rounds, name: str
) -> None:
    won = [outcome for outcome in rounds[name] if outcome.code == 0 and outcome.value is not None]
    lost = [outcome for outcome in rounds[name] if outcome.code == 4]

    # In the second round the holder itself may have drawn the lot of moving to where it is.
    already = [outcome for outcome in rounds[name] if outcome.code == 0 and outcome.value is None]
    assert len(won) == 1
    assert len(won) + len(lost) + len(already) == RACERS
    assert len(already) <= (name == "second holder")
    assert all("digits@production" in outcome.message for outcome in lost)


def test_moving_to_the_holder_moves_nothing(rounds: Rounds) -> None:
    assert values(rounds["holder again"]) == [None] * RACERS


def test_moves_of_other_aliases_are_no_conflict(rounds: Rounds, catalog: Catalog) -> None:
    assert len(values(rounds["other aliases"])) == RACERS
    holders = catalog.holders("digits")
    assert {f"canary-{racer}" for racer in range(RACERS)} < set(holders)


def test_the_journal_and_mlflow_agree_in_the_end(rounds: Rounds, catalog: Catalog) -> None:
    journal = catalog.journal("digits")
    winners = [outcome.value for name in ("first holder", "second holder") for outcome in rounds[name]]

    assert [event.number for event in journal.moves("production")] == sorted(filter(None, winners))
    assert catalog.differences("digits") == ()


def test_promotions_from_the_command_line_have_one_winner_and_no_traceback(project: Project) -> None:
    racers = 2  # each imports MLflow for itself
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
