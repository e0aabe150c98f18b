"""Processes that fetch one package at the same moment."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from mlx_platform.core.errors import MlxError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry.catalog import Catalog

PULLERS = 8
_PATIENCE = 200


def pull_at_once(folder: Path, ref: str) -> list[str]:
    """Let all of them fetch, and return the digest or the message that each one got."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(PULLERS, mp_context=context) as pool:
        waiting = [pool.submit(_pull, folder, ref, dict(os.environ)) for _ in range(PULLERS)]
        return [future.result(timeout=_PATIENCE) for future in waiting]


def _pull(folder: Path, ref: str, environment: dict[str, str]) -> str:
    catalog = Catalog(load_settings(start=folder, environment=environment))
    try:
        return catalog.fetch(catalog.resolve(ref)).digest
    except MlxError as error:
        return error.message
