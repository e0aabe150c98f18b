import shutil
from dataclasses import replace

import pytest
from projects import Project, evidence_of

from mlx_platform.core.errors import ConflictError, GateFailedError, IntegrityError, UsageError
from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.version import ARCHIVED, QUARANTINED
from mlx_platform.workflows.promote import promote


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
