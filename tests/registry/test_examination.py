from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.anchor import Anchor, trail
from mlx_platform.registry.examination import Finding, examine_model
from mlx_platform.registry.examined import Examined
from mlx_platform.registry.journal import Journal, next_event, read_journal
from mlx_platform.registry.row import Row
from mlx_platform.registry.version import DIGEST, LABEL, Version, version_of

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
MADE = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)


def version(number: int, *, stage: str = "", created_ms: int = MADE, **tags: str) -> Version:
    written = {DIGEST: f"{abs(number):064x}", LABEL: f"digits-20260301-{number:03d}"} | {
        f"mlx.{key}": text for key, text in tags.items()
    }
    written = {key: text for key, text in written.items() if text}
    found = version_of(Row("digits", number, created_ms, "", "", "", written, stage), {})
    assert found is not None
    return found


Rows = dict[int, str]


def moves(
    *steps: tuple[str, int | None], evidence: Mapping[str, Any] | None = None, time: datetime = NOW
) -> Rows:
    rows: Rows = {}
    for number, (alias, to) in enumerate(steps, start=1):
        journal = read_journal("digits", rows.items())
        event = next_event(
            journal,
            model="digits",
            alias=alias,
            from_version=journal.holder(alias),
            to=to,
            digest=f"{to:064x}" if to else "",
            kind="promote",
            actor="ada",
            reason="",
            evidence=evidence or {},
            time=time,
            id=str(number),
        )
        rows[number] = event.encode()
    return rows


def anchored(rows: Rows, at: int | None = None) -> Journal:
    number = at or max(rows)
    return read_journal("digits", rows.items(), Anchor(number, trail(rows.items())[number]).encode())


def model(
    journal: Journal | None = None,
    aliases: Mapping[str, int] | None = None,
    versions: tuple[Version, ...] = (version(2), version(1)),
) -> Examined:
    return Examined("digits", journal or Journal(), aliases or {}, versions)


def findings(examined: Examined, check: str) -> list[Finding]:
    return [finding for finding in examine_model(examined, NOW) if finding.check == check]


def unsound(examined: Examined) -> list[Finding]:
    return [finding for finding in examine_model(examined, NOW) if not finding.sound]


def test_a_model_that_is_as_it_must_be_has_nothing_wrong() -> None:
    found = list(examine_model(model(anchored(moves(("production", 1))), {"production": 1}), NOW))

    assert [(one.check, one.sound, one.repair) for one in found] == [
        ("journal", True, ""),
        ("alias", True, ""),
    ]
    assert found[0].measured == "1 move, anchor at event 1"
    assert found[0].as_check().verdict is Verdict.PASS


def test_each_problem_of_a_journal_is_a_finding_and_its_aliases_are_not_judged() -> None:
    rows = moves(("production", 1), ("production", 2), ("production", 1))
    del rows[2]

    found = unsound(model(read_journal("digits", rows.items()), {"production": 2}))

    assert {one.check for one in found} == {"journal"}
    assert found[0].measured == "event 2 is missing"


def test_an_anchor_that_lags_is_no_fault_and_can_be_repaired() -> None:
    examined = model(anchored(moves(("production", 1), ("production", 2)), at=1), {"production": 2})

    (found,) = findings(examined, "anchor")

    assert (found.sound, found.repair, found.measured) == (True, "anchor", "1 event behind")


def test_an_event_from_the_future_is_worth_knowing() -> None:
    rows = moves(("production", 1), time=NOW + timedelta(hours=2))

    (found,) = findings(model(anchored(rows), {"production": 1}), "clock")

    assert found.sound
    assert "clock of ada" in found.note


@pytest.mark.parametrize("held", [{}, {"production": 2}])
def test_an_alias_that_is_not_where_the_journal_says_can_be_repaired(held: dict[str, int]) -> None:
    (found,) = unsound(model(anchored(moves(("production", 1))), held))

    assert (found.check, found.subject, found.repair) == ("alias", "digits@production", "alias")
    assert found.expected == "journal: 1"
    assert found.command == "mlx doctor registry digits --adopt digits@production"


def test_an_alias_that_the_journal_never_saw_must_be_adopted() -> None:
    (found,) = unsound(model(aliases={"production": 1}))

    assert (found.measured, found.repair) == ("MLflow: 1", "")


def test_aliases_of_a_model_that_only_mlflow_wrote_are_fine() -> None:
    examined = model(aliases={"production": 1, "Champion": 1}, versions=(version(1, digest=""),))

    assert unsound(examined) == []
    notes = [one.note for one in findings(examined, "alias")]
    assert any("Champion" in note for note in notes)


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        (None, "digits/1 is not there"),
        (version(1, digest="f" * 64), f"digest {'f' * 64}"),
        (version(1, quarantined="wrong answers"), "quarantined"),
        (version(1, archived="true"), "archived"),
    ],
)
def test_a_holder_that_should_not_be_one_is_found(holder: Version | None, said: str) -> None:
    versions = (version(2), *([holder] if holder else []))

    (found,) = unsound(model(anchored(moves(("production", 1))), {"production": 1}, versions))

    assert (found.check, found.measured) == ("holder", said)
    # Nobody held it before, so a rollback would find nothing to go back to.
    assert found.command == "mlx gate digits/2 --to production"


def test_a_quarantined_holder_that_was_let_pass_by_hand_is_no_fault() -> None:
    rows = moves(("production", 1), evidence={"overridden": ["quarantine"]})

    assert unsound(model(anchored(rows), {"production": 1}, (version(1, quarantined="x"),))) == []


def test_an_alias_that_was_taken_away_has_no_holder_to_judge() -> None:
    rows = moves(("production", 1), ("production", None))

    assert unsound(model(anchored(rows), {}, ())) == []


@pytest.mark.parametrize("odd", [version(-3), version(3, created_ms=10**30)])
def test_a_version_that_no_registry_writes_is_found(odd: Version) -> None:
    (found,) = unsound(model(versions=(odd,)))

    assert (found.check, found.subject) == ("version", odd.ref)


def test_what_plain_mlflow_registered_is_told_with_the_command_to_adopt_it() -> None:
    plain = version(3, stage="Production", digest="")
    examined = model(versions=(plain, version(2, stage="Staging"), version(1)))

    assert unsound(examined) == []
    (digest,) = findings(examined, "digest")
    assert (digest.measured, digest.command) == ("1 version without one", "mlx adopt digits/3")
    assert [one.command for one in findings(examined, "stage")] == [
        "mlx adopt digits/3",
        "mlx promote digits/2 --to staging",
    ]


def test_a_stage_beside_an_alias_of_its_name_says_nothing() -> None:
    examined = model(anchored(moves(("production", 1))), {"production": 1}, (version(1, stage="Production"),))

    assert findings(examined, "stage") == []


def test_a_registration_that_was_interrupted_at_its_end_lacks_its_label() -> None:
    (found,) = findings(model(versions=(version(1, label=""),)), "label")

    assert (found.sound, found.repair, found.expected) == (True, "label", "digits-20260301-001")


def test_hostile_text_reaches_no_finding() -> None:
    bad = version(1, quarantined="\x1b[2J\u202egood")
    examined = model(anchored(moves(("production", 1))), {"production": 1, "\x1b[2J": 1}, (bad,))

    for finding in examine_model(examined, NOW):
        assert all(text.isprintable() for text in (finding.measured, finding.note, finding.subject))


def test_a_finding_is_told_to_machines_whole() -> None:
    finding = Finding("alias", "digits@production", sound=False, measured="a", expected="b", repair="alias")

    assert replace(finding, note="n").document() == {
        "check": "alias",
        "subject": "digits@production",
        "sound": False,
        "measured": "a",
        "expected": "b",
        "note": "n",
        "command": "",
        "repairable": True,
    }


def test_a_holder_goes_back_where_somebody_held_the_alias_before() -> None:
    journal = anchored(moves(("production", 2), ("production", 1)))

    (found,) = unsound(model(journal, {"production": 1}, (version(2), version(1, archived="true"))))

    assert found.command == "mlx rollback digits@production"


@pytest.mark.parametrize("digest", ["", "not a digest"])
def test_a_digest_that_somebody_changed_is_no_version_of_plain_mlflow(digest: str) -> None:
    odd = version(1, digest=digest, content="a" * 64)

    (found,) = findings(model(versions=(version(2), odd)), "digest")

    assert (found.subject, found.sound) == ("digits/1", False)
    assert "although mlx registered it" in found.note


@pytest.mark.parametrize(
    ("tag", "text"),
    [("params", "{"), ("metrics", '{"f1": "high"}'), ("size", "-1"), ("evidence.evaluation", "x")],
)
def test_a_tag_that_cannot_be_read_is_told(tag: str, text: str) -> None:
    (found,) = findings(model(versions=(version(1, **{tag: text}),)), "tags")

    assert (found.subject, found.sound, found.measured) == ("digits/1", True, f"mlx.{tag}: {text}")
    assert "cannot be read" in found.note


def test_a_label_of_another_version_is_told_and_can_be_repaired() -> None:
    (found,) = findings(model(versions=(version(1, label="digits-20260301-009"),)), "label")

    assert (found.sound, found.repair, found.expected) == (True, "label", "digits-20260301-001")


def test_a_broken_journal_names_what_to_do_next() -> None:
    (found,) = findings(model(read_journal("digits", [(1, "x")]), versions=()), "journal")

    assert found.command.startswith("mlx list digits --all  # ")
    assert "docs/registry.md" in found.command
