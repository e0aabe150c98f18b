from dataclasses import replace

import pytest
from projects import Project

from mlx_platform.workflows.describe import evidence_text, size_text, version_facts, version_table


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB (1,000 bytes)"),
        (12_345_678, "12.3 MB (12,345,678 bytes)"),
        (5_000_000_000_000, "5e+03 GB (5,000,000,000,000 bytes)"),
    ],
)
def test_sizes_are_rounded_with_the_exact_number_beside_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_version_is_described_by_what_it_has(project: Project) -> None:
    version = project.catalog.resolve("digits/1")

    facts = {fact.label: fact.value for fact in version_facts(version)}

    assert facts["version"] == "digits/1"
    assert facts["digest"] == version.digest
    assert facts["created"].count("Z (") == 1
    assert "made from" not in facts
    assert "made from" in {fact.label for fact in version_facts(replace(version, parent="digits/9"))}


def test_tables_keep_identifiers_whole(project: Project) -> None:
    version = replace(project.catalog.resolve("digits/1"), name="n" * 128, label="l" * 140)

    (row,) = version_table([version], "").rows

    assert f"{'n' * 128}/1" in row
    assert "l" * 140 in row


def test_a_move_tells_what_it_stood_on(project: Project) -> None:
    event = project.catalog.move(
        "digits",
        "production",
        1,
        kind="promote",
        actor="ada",
        evidence={"evaluation": {"id": "1", "verdict": "pass"}, "overridden": ["shadow"], "odd": 3},
    )

    assert event is not None
    assert evidence_text(event) == "evaluation pass, by hand: shadow"
