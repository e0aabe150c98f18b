import shutil
from dataclasses import replace
from typing import Any

import orjson
import pytest
from projects import Project, evidence_of, transit

from mlx_platform.core.errors import ConflictError, GateFailedError, IntegrityError, UsageError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.report import Result
from mlx_platform.core.settings import EvaluationSettings, PromotionSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.gate_file import read_gates
from mlx_platform.inference.package import Package, with_file
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.journal import Event
from mlx_platform.registry.version import ARCHIVED, QUARANTINED, Lineage, Version
from mlx_platform.workflows.gate import gate
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.rollback import rollback


def record(project: Project, ref: str, verdict: Verdict = Verdict.PASS) -> None:
    version = project.catalog.resolve(ref)
    project.catalog.record(version, evidence_of(version, verdict=verdict))


def test_staging_needs_nothing(project: Project) -> None:
    result = promote(project.context, "digits/2", to="staging", reason="try it")

    assert (result.data["before"], result.data["after"], result.data["changed"]) == (None, 2, True)
    assert result.data["event"]["actor"] == "tester"
    assert result.data["event"]["reason"] == "try it"
    assert project.anew().holders("digits") == {"staging": 2}


def test_production_needs_an_evaluation_of_this_digest(project: Project) -> None:
    record(project, "digits/1")

    with pytest.raises(GateFailedError) as caught:
        promote(project.context, "digits/2", to="production")

    assert "evaluation (no evidence)" in caught.value.message
    assert "mlx eval digits/2" in caught.value.hint
    assert "--override evaluation" in caught.value.hint
    assert caught.value.details["gates"][0]["name"] == "evaluation"
    assert project.catalog.holders("digits") == {}

    record(project, "digits/2")
    result = promote(project.context, "digits/2", to="production")
    assert result.data["event"]["evidence"]["evaluation"]["verdict"] == "pass"
    assert result.report.checks[0].verdict is Verdict.PASS


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNDECIDED, Verdict.ERROR])
def test_an_evaluation_that_did_not_pass_is_no_evidence(project: Project, verdict: Verdict) -> None:
    record(project, "digits/2", verdict)

    with pytest.raises(GateFailedError, match=rf"evaluation \({verdict}\)"):
        promote(project.context, "digits/2", to="production")


@pytest.mark.parametrize("override", ["evaluation", "all"])
def test_a_gate_can_be_let_pass_by_hand_with_a_reason(project: Project, override: str) -> None:
    with pytest.raises(UsageError, match="needs a reason"):
        promote(project.context, "digits/2", to="production", override=(override,))

    result = promote(project.context, "digits/2", to="production", override=(override,), reason="incident")

    assert result.data["event"]["evidence"]["overridden"] == ["evaluation"]
    assert result.report.checks[0].skipped == "let pass by hand: incident"


def test_a_gate_that_is_not_there_cannot_be_let_pass(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        promote(project.context, "digits/2", to="production", override=("evalution",), reason="x")

    assert "'evaluation'" in caught.value.hint


def test_a_policy_may_forbid_letting_gates_pass(project: Project) -> None:
    policy = {"production": PromotionSettings(needs=("evaluation",), allow_override=False)}
    object.__setattr__(project.context, "settings", replace(project.settings, promotion=policy))

    with pytest.raises(UsageError, match="allow_override"):
        promote(project.context, "digits/2", to="production", override=("all",), reason="x")


def test_a_quarantine_is_lifted_by_its_name_only(project: Project) -> None:
    version = project.catalog.resolve("digits/2")
    project.catalog.set_tags(version, {QUARANTINED: "errors rose"})
    with pytest.raises(GateFailedError, match="quarantine"):
        promote(project.context, "digits/2", to="staging")
    with pytest.raises(GateFailedError, match="quarantine"):
        promote(project.context, "digits/2", to="staging", override=("all",), reason="x")

    assert promote(project.context, "digits/2", to="staging", override=("quarantine",), reason="x").data[
        "changed"
    ]


def test_an_archived_version_is_refused(project: Project) -> None:
    project.catalog.set_tags(project.catalog.resolve("digits/2"), {ARCHIVED: "true"})

    with pytest.raises(ConflictError, match="archived"):
        promote(project.context, "digits/2", to="staging")


def test_promoting_what_is_there_already_changes_nothing(project: Project) -> None:
    promote(project.context, "digits/2", to="staging")

    result = promote(project.context, "digits/2", to="staging", expect="2")

    assert (result.data["before"], result.data["after"], result.data["changed"]) == (2, 2, False)
    assert result.data["event"] is None
    assert result.exit_code == 0
    assert len(project.catalog.history("digits")) == 1


@pytest.mark.parametrize("expect", ["1", "digits/1", "none", "NONE"])
def test_an_expectation_that_is_not_met_is_a_conflict_before_any_gate(project: Project, expect: str) -> None:
    promote(project.context, "digits/3", to="production", override=("all",), reason="x")

    with pytest.raises(ConflictError) as caught:
        promote(project.context, "digits/2", to="production", expect=expect)

    assert caught.value.details["actual"] == 3


@pytest.mark.parametrize("expect", ["x", "", "1.0", "-1", "٣"])
def test_an_expectation_is_a_number_or_none(project: Project, expect: str) -> None:
    with pytest.raises(UsageError):
        promote(project.context, "digits/2", to="staging", expect=expect)


def test_a_misspelt_alias_is_no_new_one_without_gates(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        promote(project.context, "digits/2", to="prodution")

    assert "'production'" in caught.value.hint
    assert promote(project.context, "digits/2", to="canary").data["changed"]


def test_a_version_without_its_bytes_does_not_become_production(project: Project) -> None:
    shutil.rmtree(project.folder / "mlx-artifacts")

    with pytest.raises(IntegrityError):
        promote(project.context, "digits/2", to="staging")

    assert project.catalog.holders("digits") == {}


def test_a_version_can_be_named_by_another_alias(project: Project) -> None:
    promote(project.context, "digits/2", to="staging")

    result = promote(project.context, "digits@staging", to="production", override=("all",), reason="x")

    assert result.data["version"] == 2
    assert project.catalog.resolve("digits/2").aliases == ("production", "staging")


def with_policy(project: Project, **policy: object) -> Project:
    promotion = {"production": PromotionSettings(**policy)}  # type: ignore[arg-type]
    object.__setattr__(project.context, "settings", replace(project.settings, promotion=promotion))
    return project


def test_a_dry_run_judges_and_verifies_everything_and_writes_nothing(project: Project) -> None:
    with pytest.raises(GateFailedError, match=r"evaluation \(no evidence\)"):
        promote(project.context, "digits/2", to="production", dry_run=True)
    record(project, "digits/2")
    before = project.database.read_bytes()

    result = promote(project.context, "digits/2", to="production", dry_run=True)

    assert (result.data["changed"], result.data["would_change"], result.data["after"]) == (False, True, None)
    assert "would move from nobody to 2" in result.report.summary
    assert result.data["event"] is None
    assert project.database.read_bytes() == before
    shutil.rmtree(project.folder / "mlx-artifacts")
    shutil.rmtree(project.settings.path(project.settings.cache.dir))
    with pytest.raises(IntegrityError):
        promote(project.context, "digits/2", to="production", dry_run=True)


def test_a_pipeline_gets_the_verdict_of_the_gates_and_a_move_once_they_pass(project: Project) -> None:
    def run(*, dry_run: bool = False) -> Result:
        return promote(project.context, "digits/2", to="production", when_gates_pass=True, dry_run=dry_run)

    missing = run()
    record(project, "digits/2", Verdict.FAIL)
    failed = run()
    record(project, "digits/2")
    rehearsed = run(dry_run=True)
    moved, again = run(), run()

    codes = [result.exit_code for result in (missing, failed, rehearsed, moved, again)]
    assert codes == [7, 5, 0, 0, 0]
    changed = [result.data["changed"] for result in (missing, failed, rehearsed, moved, again)]
    assert changed == [False, False, False, True, False]
    assert missing.report.summary == "digits/2 does not move yet to production: evaluation (no evidence)."
    assert missing.data["gates"][0]["command"].startswith("mlx eval digits/2 ")
    assert not moved.report.checks
    assert len(project.catalog.history("digits")) == 1


def test_a_pipeline_still_learns_of_conflicts_and_wrong_usage(project: Project) -> None:
    with pytest.raises(ConflictError):
        promote(project.context, "digits/2", to="production", when_gates_pass=True, expect="1")
    with pytest.raises(UsageError):
        promote(project.context, "digits/2", to="prodution", when_gates_pass=True)


def test_a_version_that_was_rolled_back_comes_back_only_by_hand(project: Project) -> None:
    policy = with_policy(project)
    for ref in ("digits/1", "digits/2"):
        promote(policy.context, ref, to="production")
    rollback(policy.context, "digits", reason="wrong answers")

    with pytest.raises(GateFailedError, match=r"quarantine \(rolled back\)") as caught:
        promote(policy.context, "digits/2", to="production", override=("all",), reason="x")
    assert "rolled back from production on" in caught.value.hint
    assert "wrong answers" in caught.value.hint
    assert promote(policy.context, "digits/2", to="staging").data["changed"]

    result = promote(policy.context, "digits/2", to="production", override=("quarantine",), reason="sound")
    assert result.data["event"]["evidence"]["overridden"] == ["quarantine"]
    assert promote(policy.context, "digits/3", to="production").data["changed"]
    assert promote(policy.context, "digits/2", to="production").data["changed"]


def test_a_version_that_is_too_young_waits(project: Project) -> None:
    record(project, "digits/2")
    policy = with_policy(project, needs=("evaluation",), min_age="999d")

    with pytest.raises(GateFailedError, match=r"min_age \(") as caught:
        promote(policy.context, "digits/2", to="production")

    assert "is old enough in" in caught.value.hint
    assert promote(policy.context, "digits/2", to="production", override=("min_age",), reason="x").data[
        "changed"
    ]


def test_a_refusal_carries_the_document_of_the_gate_command(project: Project) -> None:
    with pytest.raises(GateFailedError) as caught:
        promote(project.context, "digits/2", to="production")

    assert caught.value.details == gate(project.context, "digits/2", to="production").data


def test_an_evaluation_against_a_holder_of_before_is_repeated(project: Project) -> None:
    first, second, third = (project.catalog.resolve(f"digits/{number}") for number in (1, 2, 3))
    promote(project.context, "digits/1", to="production", override=("all",), reason="first")
    for version in (second, third):
        project.catalog.record(version, compared(version, first))
    promote(project.context, "digits/2", to="production")

    with pytest.raises(GateFailedError, match=r"evaluation \(other baseline\)") as caught:
        promote(project.context, "digits/3", to="production")

    assert "mlx eval digits/3 --data data/test.parquet" in caught.value.hint
    project.catalog.record(third, compared(third, second))
    assert promote(project.context, "digits/3", to="production").data["changed"]


def compared(version: Version, baseline: Version) -> Evidence:
    judged = {"against": baseline.digest, "against_ref": baseline.ref, "compared": True, "baseline": ""}
    return replace(evidence_of(version), parameters=judged | {"data": "data/test.parquet"})


def test_evidence_of_other_gates_than_the_settings_name_is_repeated(project: Project) -> None:
    (project.folder / "gates.toml").write_text('version = 1\n[[gates]]\nmetric = "accuracy"\nmin = 0.9\n')
    settings = replace(project.settings, evaluation=EvaluationSettings(gates="gates.toml"))
    object.__setattr__(project.context, "settings", settings)
    version = project.catalog.resolve("digits/2")
    project.catalog.record(version, evidence_of(version))

    with pytest.raises(GateFailedError, match=r"evaluation \(other gates\)"):
        promote(project.context, "digits/2", to="production")

    digest = read_gates(project.folder / "gates.toml").digest
    project.catalog.record(version, replace(evidence_of(version), parameters={"gate_file": digest}))
    assert promote(project.context, "digits/2", to="production").data["changed"]


def test_a_model_that_answers_something_else_than_its_golden_cases_is_refused(project: Project) -> None:
    version, _ = project.catalog.register("digits", liar(project), Lineage())

    with pytest.raises(GateFailedError, match=r"self-check \(failed\)") as caught:
        promote(project.context, version.ref, to="staging", override=("all",), reason="x")

    assert "Golden case 1" in caught.value.hint
    assert "--override self-check" in caught.value.hint


def liar(project: Project) -> Package:
    """A package whose golden cases say something else than its network."""
    package = project.variant("liar")
    cases = (package.root / "golden.jsonl").read_bytes().splitlines()
    document = orjson.loads(cases[0]) | {"generated": False}
    other = orjson.loads((project.folder / "packages" / "3" / "golden.jsonl").read_bytes().splitlines()[0])
    return with_file(package, "golden.jsonl", orjson.dumps(document | {"outputs": other["outputs"]}) + b"\n")


def test_a_move_between_judging_and_moving_is_a_conflict(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Catalog.move

    def overtaken(catalog: Catalog, name: str, alias: str, to: int, **rest: Any) -> Event | None:
        real(project.anew(), name, alias, 3, kind="promote", actor="bob")
        return real(catalog, name, alias, to, **rest)

    monkeypatch.setattr(Catalog, "move", overtaken)

    with pytest.raises(ConflictError, match="is 3, not nobody"):
        promote(project.context, "digits/2", to="staging")
    # Who put the same version there meanwhile did what was asked.
    assert promote(project.context, "digits/3", to="canary").data["changed"] is False


def test_the_holder_that_is_expected_is_a_version_of_the_same_model(project: Project) -> None:
    for expect in ("letters/1", "x/digits/1"):
        with pytest.raises(UsageError, match=f"'{expect}' is no version of digits"):
            promote(project.context, "digits/2", to="staging", expect=expect)


def test_a_refusal_keeps_the_gates_that_were_let_pass_already(project: Project) -> None:
    for number in (1, 2):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")
    rollback(project.context, "digits", verify=False)

    with pytest.raises(GateFailedError) as caught:
        promote(
            project.context,
            "digits/2",
            to="production",
            expect="1",
            override=("evaluation",),
            reason="it's ok",
        )

    flags = "--override evaluation --override quarantine --reason 'it'\"'\"'s ok' --expect 1"
    assert f"mlx promote digits/2 --to production {flags}" in caught.value.hint


def test_a_first_promotion_does_not_propose_a_rollback_that_cannot_be(project: Project) -> None:
    for ref in ("digits/1", "digits/2"):
        record(project, ref)
    first = promote(project.context, "digits/1", to="production").report.next_steps
    second = promote(project.context, "digits/2", to="production").report.next_steps

    assert first == ("mlx serve digits@production",)
    assert second == ("mlx serve digits@production", "mlx rollback digits")


def test_a_promotion_during_a_rollout_moves_and_says_that_it_ends_it(project: Project) -> None:
    promote(project.context, "digits/1", to="production", override=("all",), reason="x")
    transit(project, 2, step=0, weight=5)

    staged = promote(project.context, "digits/3", to="staging")
    result = promote(project.context, "digits/3", to="production", override=("all",), reason="x")

    assert staged.warnings == ()
    assert result.data["changed"]
    assert "A move of digits@production by hand ends it as superseded" in result.warnings[0]


def test_the_alias_of_a_rollout_is_not_promoted_to(project: Project) -> None:
    promote(project.context, "digits/1", to="production", override=("all",), reason="x")
    transit(project, 2, step=0, weight=5)

    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="digits@canary belongs to a rollout") as caught:
            promote(project.context, "digits/3", to="canary", dry_run=dry_run)
    assert caught.value.hint == "End it with: mlx rollout abort digits"
