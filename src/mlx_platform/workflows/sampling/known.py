"""Rows that were drawn before, by the hash of their inputs."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.evaluation.sample_format import read_sample


def known_hashes(paths: Iterable[Path]) -> frozenset[str]:
    """The hashes in earlier samples, in any of the forms that `mlx sample` writes.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is no sample.
    """
    return frozenset(found for path in paths for found in _hashes(path))


def _hashes(path: Path) -> Iterator[str]:
    match path.suffix.lower():
        case ".csv":
            yield from _from_csv(path)
        case ".json":
            yield from _from_tasks(path)
        case _:
            yield from (row.input_hash for row in read_sample(path))


def _from_csv(path: Path) -> Iterator[str]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            table = csv.DictReader(lines)
            if "input_hash" not in (table.fieldnames or ()):
                raise UsageError(f"{path} has no column input_hash, so it is no sample.")
            yield from (str(line["input_hash"]) for line in table)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no sample {path}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"Cannot read {path}: {error}.") from error


def _from_tasks(path: Path) -> Iterator[str]:
    try:
        tasks = orjson.loads(path.read_bytes())
        yield from (str(task["data"]["input_hash"]) for task in tasks)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no sample {path}.") from error
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no tasks of a sample.") from error
