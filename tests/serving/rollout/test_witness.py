from datetime import UTC, datetime

import pytest
from fleets import MODEL

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict
from mlx_platform.serving.rollout.witness import record_beside


def _evidence(digest):
    return Evidence(
        kind="shadow",
        digest=digest,
        verdict=Verdict.PASS,
        created=datetime(2026, 3, 8, 7, tzinfo=UTC),
        data_fingerprint="",
        parameters={"rollout": "r1"},
        numbers={"error_rate": {"value": 0.0, "requests": 400.0}},
        tools={},
    )


def test_evidence_is_recorded_by_a_process_of_its_own(fleet):
    version = fleet.catalog.resolve(f"{MODEL}/2")
    record_beside(fleet.settings, version.ref, _evidence(version.digest))
    found = fleet.catalog.evidence(fleet.catalog.resolve(f"{MODEL}/2"))["shadow"]
    assert found.verdict == "pass"
    assert found.numbers["error_rate"] == {"value": 0.0, "requests": 400.0}
    with pytest.raises(UnavailableError, match="is about"):
        record_beside(fleet.settings, f"{MODEL}/3", _evidence(version.digest))
