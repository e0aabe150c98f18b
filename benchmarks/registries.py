"""Registries of any size, written in seconds: MLflow makes the tables, plain SQL fills them."""

import hashlib
import json
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mlx_platform.registry.journal import Journal, next_event
from mlx_platform.registry.ledger import EVENT_TAG
from mlx_platform.registry.ref import JOURNAL_PREFIX
from mlx_platform.registry.version import (
    ACTOR,
    CONTENT,
    DATASET,
    DIGEST,
    EVIDENCE_PREFIX,
    GIT_COMMIT,
    INPUTS,
    LABEL,
    METRICS,
    OUTPUTS,
    PARAMS,
    SIZE,
    TASK,
    label_of,
)

NAME = "digits"
START = datetime(2025, 1, 1, tzinfo=UTC)
MLX = str(Path(sys.executable).with_name("mlx"))


def fill(database: Path, versions: int, *, moves: int) -> None:
    """Write versions with their tags, and a journal whose last event leaves the newest in production."""
    # The aliases move at the end of the versions' time, oldest first.
    movers = [max(1, versions - moves + 1 + number) for number in range(moves)]
    with closing(sqlite3.connect(database)) as connection, connection:
        for name in (NAME, JOURNAL_PREFIX + NAME):
            connection.execute(
                "INSERT INTO registered_models (name, creation_time, last_updated_time) VALUES (?, ?, ?)",
                (name, _ms(START), _ms(START)),
            )
        connection.executemany(
            "INSERT INTO registered_model_tags (name, key, value) VALUES (?, 'mlx.journal', ?)",
            [(JOURNAL_PREFIX + NAME, NAME)],
        )
        for number in range(1, versions + 1):
            created = START + timedelta(minutes=number)
            _version(connection, NAME, number, created, f"models:/m-{_digest('m', number)[:32]}")
            _tags(connection, NAME, number, _tags_of(number, created))
        for number, text in enumerate(_events(movers, START + timedelta(minutes=versions)), start=1):
            name = JOURNAL_PREFIX + NAME
            _version(connection, name, number, START, f"models:/{NAME}/{movers[number - 1]}")
            _tags(connection, name, number, {EVENT_TAG: text})
        for alias, number in {"production": movers[-1], "staging": movers[-2]}.items():
            connection.execute(
                "INSERT INTO registered_model_aliases (name, alias, version) VALUES (?, ?, ?)",
                (NAME, alias, number),
            )


def _events(movers: list[int], time: datetime) -> Iterator[str]:
    journal, holders = Journal(), dict.fromkeys(("staging", "production"))
    for place, to in enumerate(movers, start=1):
        alias = "production" if (len(movers) - place) % 2 == 0 else "staging"
        event = next_event(
            journal,
            model=NAME,
            alias=alias,
            from_version=holders[alias],
            to=to,
            digest=_digest("package", to),
            kind="promote",
            actor="somebody",
            reason="better on the new writers",
            evidence={"overridden": [], "evaluation": {"id": _digest("evidence", to), "verdict": "pass"}},
            time=time + timedelta(minutes=place),
            id=_digest("event", place)[:32],
        )
        holders[alias] = to  # type: ignore[assignment]  # None only before the first
        yield event.encode()
        journal = Journal((replace(event, number=place, valid=True),))


def _tags_of(number: int, created: datetime) -> dict[str, str]:
    chance = random.Random(number)  # noqa: S311 - made-up figures
    digest = _digest("package", number)
    score = chance.uniform(0.8, 0.99)
    evidence = {
        "id": _digest("evidence", number),
        "digest": digest,
        "verdict": "pass",
        "created": "2026-01-01T00:00:00.000Z",
        "data_fingerprint": _digest("data", number),
        "run_id": _digest("run", number)[:32],
        "numbers": {"accuracy": {"value": score, "lower": score - 0.02, "upper": score + 0.01}, "rows": 500},
    }
    return {
        DIGEST: digest,
        CONTENT: _digest("content", number),
        SIZE: str(chance.randrange(10_000, 90_000_000)),
        LABEL: label_of(NAME, number, created),
        TASK: "classification",
        INPUTS: "x FP32 [-1, 64]",
        OUTPUTS: "probabilities FP32 [-1, 10]",
        DATASET: f"2026-{number % 12 + 1:02d}",
        GIT_COMMIT: _digest("commit", number)[:40],
        ACTOR: "somebody",
        PARAMS: json.dumps({"lr": str(chance.choice((0.1, 0.01, 0.001))), "layers": "2"}),
        METRICS: json.dumps({"f1": score, "loss": 1 - score}),
        EVIDENCE_PREFIX + "evaluation": json.dumps(evidence),
    }


def _version(connection: sqlite3.Connection, name: str, number: int, created: datetime, source: str) -> None:
    connection.execute(
        "INSERT INTO model_versions (name, version, creation_time, last_updated_time, description, "
        "current_stage, source, run_id, status, storage_location) "
        "VALUES (?, ?, ?, ?, '', 'None', ?, ?, 'READY', ?)",
        (name, number, _ms(created), _ms(created), source, _digest("run", number)[:32], source),
    )


def _tags(connection: sqlite3.Connection, name: str, number: int, tags: dict[str, str]) -> None:
    connection.executemany(
        "INSERT INTO model_version_tags (name, version, key, value) VALUES (?, ?, ?, ?)",
        [(name, number, key, value) for key, value in tags.items()],
    )


def _digest(kind: str, number: int) -> str:
    return hashlib.sha256(f"{kind} {number}".encode()).hexdigest()


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)
