"""Keeping evidence with a version, in a process of its own: `python -m mlx_platform.serving.rollout.witness`.

A SQLite registry or a database needs MLflow for it, which takes seconds of CPU and some hundred MB, and is no
guest for a process that serves.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import MlxError, UnavailableError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.settings import CacheSettings, RegistrySettings, Settings
from mlx_platform.core.tables import read_table
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict

_SECONDS = 300.0
_NICENESS = 5  # whoever is served comes first


def record_beside(settings: Settings, ref: str, evidence: Evidence) -> None:
    """Record evidence about a version, and wait until it is there.

    Raises:
        UnavailableError: it could not be recorded.
    """
    document = {
        "folder": str(settings.folder),
        "registry": asdict(settings.registry),
        "cache": asdict(settings.cache),
        "ref": ref,
        "evidence": evidence.document(),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(document).encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"The evidence about {ref} was not recorded: {error}.") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = printable(said[-1], 300) if said else f"exit code {done.returncode}"
        raise UnavailableError(f"The evidence about {ref} was not recorded: {reason}")


def main() -> int:
    """Record what standard input says; an error's message goes to standard error."""
    from mlx_platform.registry.catalog import Catalog

    os.nice(_NICENESS)
    document = json.loads(sys.stdin.buffer.read())
    settings = Settings(
        folder=Path(document["folder"]),
        registry=read_table(RegistrySettings, document["registry"], source="the server"),
        cache=read_table(CacheSettings, document["cache"], source="the server"),
    )
    try:
        catalog = Catalog(settings)
        catalog.record(catalog.resolve(document["ref"]), _evidence(document["evidence"]))
    except MlxError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    return 0


def _evidence(document: Mapping[str, Any]) -> Evidence:
    return Evidence(
        kind=document["kind"],
        digest=document["digest"],
        verdict=Verdict(document["verdict"]),
        created=datetime.fromisoformat(document["created"]),
        data_fingerprint=document["data_fingerprint"],
        parameters=document["parameters"],
        numbers=document["numbers"],
        tools=document["tools"],
    )


if __name__ == "__main__":
    sys.exit(main())
