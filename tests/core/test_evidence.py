from dataclasses import replace
from datetime import UTC, datetime

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict

EVIDENCE = Evidence(
    kind="evaluation",
    digest="d" * 64,
    verdict=Verdict.PASS,
    created=datetime(2026, 1, 2, tzinfo=UTC),
    data_fingerprint="f",
    parameters={"seed": 0},
    numbers={"accuracy": 0.9},
    tools={"mlx": "0.1.0"},
)


def test_the_id_follows_the_content_and_nothing_else() -> None:
    assert EVIDENCE.id == replace(EVIDENCE, numbers={"accuracy": 0.9}).id
    assert EVIDENCE.id != replace(EVIDENCE, numbers={"accuracy": 0.8}).id


def test_the_document_says_what_was_found_about_which_digest() -> None:
    document = EVIDENCE.document()

    assert (document["digest"], document["verdict"], document["created"]) == (
        "d" * 64,
        "pass",
        "2026-01-02T00:00:00Z",
    )
