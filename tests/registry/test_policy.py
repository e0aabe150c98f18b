import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.journal import Event
from mlx_platform.registry.policy import (
    QUARANTINE,
    SELF_CHECK,
    Candidate,
    Requirement,
    Standard,
    answers,
    lifted,
    producing_command,
    requirements,
    self_checked,
)
from mlx_platform.registry.row import Row
from mlx_platform.registry.tolerance import Tolerance
from mlx_platform.registry.version import UNKNOWN_TIME, Version, evidence_of, version_of

DIGEST = "d" * 64
NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
NEEDS = PromotionSettings(needs=("evaluation", "consistency"))
EVALUATED = PromotionSettings(needs=("evaluation",))
JUDGED = {
    "gate_file": "a" * 16,
    "baseline": "",
    "against": "b" * 64,
    "against_ref": "digits/2",
    "compared": True,
}
GATES = [
    {"name": "accuracy >= 0.9", "verdict": "pass", "shown": "0.9300 [0.9100, 0.9500]", "threshold": 0.9},
    {"name": "accuracy max_drop 1pp", "verdict": "fail", "shown": "-2.00 pp", "skipped": ""},
]


def version(found: dict[str, Any] | None = None, *, age: timedelta = timedelta(0), **tags: str) -> Version:
    summaries = {
        f"mlx.evidence.{kind}": json.dumps(
            {"digest": DIGEST} | (summary if isinstance(summary, dict) else {"verdict": summary})
        )
        for kind, summary in (found or {}).items()
    }
    written: dict[str, Any] = {"mlx.digest": DIGEST} | {f"mlx.{key}": value for key, value in tags.items()}
    created = int((NOW - age).timestamp() * 1000)
    made = version_of(Row("digits", 3, created, "", "", "", written | summaries), {})
    assert made is not None
    return made


def asked(
    policy: PromotionSettings,
    candidate: Version,
    *,
    standard: Standard | None = None,
    rolled_back: Event | None = None,
) -> dict[str, Requirement]:
    found = requirements(
        policy,
        Candidate(candidate, evidence_of(candidate), rolled_back),
        standard=standard or Standard(),
        now=NOW,
    )
    return {requirement.name: requirement for requirement in found}


def verdicts(policy: PromotionSettings, candidate: Version, **rest: Any) -> dict[str, Verdict]:
    found = asked(policy, candidate, **rest)
    return {name: one.check.verdict for name, one in found.items() if name != QUARANTINE}


def evaluated(**judged: Any) -> Version:
    summary = {"verdict": "pass", "created": "2026-03-08T07:00:00Z", "judged": JUDGED | judged}
    return version({"evaluation": summary})


def test_every_need_is_asked_and_missing_evidence_is_never_a_pass() -> None:
    assert verdicts(NEEDS, version({"evaluation": "pass"})) == {
        "evaluation": Verdict.PASS,
        "consistency": Verdict.UNDECIDED,
    }


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        ("pass", Verdict.PASS),
        ("fail", Verdict.FAIL),
        ("undecided", Verdict.UNDECIDED),
        ("error", Verdict.ERROR),
        ("PASS", Verdict.ERROR),
        ("", Verdict.ERROR),
    ],
)
def test_the_verdict_of_the_evidence_is_the_verdict_of_the_gate(written: str, verdict: Verdict) -> None:
    assert verdicts(EVALUATED, version({"evaluation": written})) == {"evaluation": verdict}


def test_an_alias_that_needs_nothing_asks_for_no_evidence() -> None:
    assert verdicts(PromotionSettings(), version()) == {}


def test_a_quantized_version_needs_its_quantization_wherever_others_need_evidence() -> None:
    candidate = version({"evaluation": "pass"}, quantized="static-int8", parent="digits/2")

    assert verdicts(EVALUATED, candidate)["quantization"] is Verdict.UNDECIDED
    assert verdicts(PromotionSettings(), candidate) == {}


def test_a_quarantine_stands_in_every_way() -> None:
    found = asked(PromotionSettings(), version(quarantined="errors rose\x1b[31m"))[QUARANTINE]

    assert found.check.verdict is Verdict.FAIL
    assert found.check.message.isprintable()
    assert found.lift == (QUARANTINE,)


def rollback_event(**changes: Any) -> Event:
    event = Event(4, "0" * 32, "digits", "production", 3, 2, DIGEST, 3, "rollback", "ana", "", {}, NOW, "")
    return replace(event, **changes)


def test_a_version_that_was_rolled_back_is_quarantined_for_the_alias_and_says_when_by_whom_and_why() -> None:
    event = rollback_event(reason="wrong\x1b answers")

    check = asked(PromotionSettings(), version(), rolled_back=event)[QUARANTINE].check

    assert (check.verdict, check.measured) == (Verdict.FAIL, "rolled back")
    assert check.message.startswith("digits/3 was rolled back from production on 2026-03-08 12:00:00Z (")
    assert check.message.endswith("by ana: wrong\\u001b answers.")


def test_a_version_must_be_as_old_as_the_alias_asks() -> None:
    policy = PromotionSettings(min_age="1d")

    young = asked(policy, version(age=timedelta(hours=2)))["min_age"]

    assert (young.check.verdict, young.check.measured) == (Verdict.UNDECIDED, "2h")
    assert young.check.threshold == ">= 1d since it was registered"
    assert young.check.message == "digits/3 is old enough in 22h."
    assert verdicts(policy, version(age=timedelta(days=1))) == {"min_age": Verdict.PASS}
    assert verdicts(policy, version(age=timedelta(hours=-3))) == {"min_age": Verdict.UNDECIDED}
    timeless = replace(version(), created=UNKNOWN_TIME)
    assert verdicts(policy, timeless) == {"min_age": Verdict.UNDECIDED}


def test_the_longest_age_that_can_be_written_is_no_crash() -> None:
    assert verdicts(PromotionSettings(min_age="999999999d"), version()) == {"min_age": Verdict.UNDECIDED}


@pytest.mark.parametrize(
    ("created", "verdict"),
    [
        ("2026-03-07T12:00:00Z", Verdict.PASS),
        ("2026-03-07T11:59:59Z", Verdict.UNDECIDED),
        ("2026-03-07T12:00:00", Verdict.UNDECIDED),
        ("yesterday", Verdict.UNDECIDED),
        ("", Verdict.UNDECIDED),
    ],
)
def test_evidence_that_is_too_old_or_has_no_date_is_made_again(created: str, verdict: Verdict) -> None:
    policy = PromotionSettings(needs=("evaluation",), max_evidence_age="1d")
    candidate = version({"evaluation": {"verdict": "pass", "created": created}})

    found = asked(policy, candidate)["evaluation"]

    assert found.check.verdict is verdict
    assert found.check.threshold == "evaluation passed for this digest, at most 1d ago"
    assert bool(found.command) is (verdict is not Verdict.PASS)


def test_evidence_that_other_gates_judged_is_made_again() -> None:
    standard = Standard(gates="a" * 16, gates_name="gates.toml")

    found = asked(EVALUATED, evaluated(gate_file="c" * 16), standard=standard)["evaluation"]

    assert (found.check.verdict, found.check.measured) == (Verdict.UNDECIDED, "other gates")
    assert "judged by other gates than gates.toml" in found.check.message
    assert found.command == "mlx eval digits/3 --data TEST.parquet"
    assert verdicts(EVALUATED, evaluated(), standard=standard) == {"evaluation": Verdict.PASS}


def test_evidence_of_before_it_said_its_gates_counts_only_where_the_settings_name_none() -> None:
    old = version({"evaluation": {"verdict": "pass", "numbers": {"gates": GATES}}})

    assert verdicts(EVALUATED, old) == {"evaluation": Verdict.PASS}
    assert verdicts(EVALUATED, old, standard=Standard(baseline="c" * 64)) == {"evaluation": Verdict.PASS}
    found = asked(EVALUATED, old, standard=Standard(gates="a" * 16, gates_name="gates.toml"))["evaluation"]
    assert (found.check.verdict, found.check.measured) == (Verdict.UNDECIDED, "other gates")


@pytest.mark.parametrize(
    ("judged", "baseline", "verdict"),
    [
        ({}, "b" * 64, Verdict.PASS),
        ({}, "c" * 64, Verdict.UNDECIDED),
        ({"against": "", "against_ref": ""}, "c" * 64, Verdict.UNDECIDED),
        ({"compared": False}, "c" * 64, Verdict.PASS),
        ({}, "", Verdict.PASS),
        ({}, DIGEST, Verdict.PASS),
    ],
    ids=["same", "moved", "there was none", "limits only", "nobody holds it", "holds it itself"],
)
def test_a_drop_that_was_judged_against_another_baseline_is_judged_again(
    judged: dict[str, Any], baseline: str, verdict: Verdict
) -> None:
    standard = Standard(baseline=baseline, baseline_ref="digits@production")

    found = asked(EVALUATED, evaluated(**judged), standard=standard)["evaluation"]

    assert found.check.verdict is verdict
    if verdict is not Verdict.PASS:
        assert found.check.measured == "other baseline"
        assert found.check.message.endswith("it is digits@production now.")


def test_a_consistency_that_asked_for_less_than_now_is_checked_again() -> None:
    policy = PromotionSettings(needs=("consistency",))
    candidate = version({"consistency": {"verdict": "pass", "judged": {"threshold": 0.99}}})

    assert verdicts(policy, candidate, standard=Standard(min_agreement=0.99)) == {"consistency": Verdict.PASS}
    stricter = Standard(min_agreement=0.999)
    assert verdicts(policy, candidate, standard=stricter) == {"consistency": Verdict.UNDECIDED}


def test_a_quantization_that_was_allowed_to_lose_more_than_now_is_judged_again() -> None:
    policy = PromotionSettings(needs=("quantization",))
    judged = {"limit": "max_drop", "tolerated": "2pp", "tolerated_amount": 0.02, "tolerated_relative": False}
    candidate = version({"quantization": {"verdict": "pass", "judged": judged}})
    wide, narrow = (
        Standard(tolerances={"max_drop": Tolerance(amount, relative=False, shown=f"{100 * amount:g}pp")})
        for amount in (0.02, 0.01)
    )

    assert verdicts(policy, candidate, standard=wide) == {"quantization": Verdict.PASS}
    found = asked(policy, candidate, standard=narrow)["quantization"]
    assert (found.check.verdict, found.check.measured) == (Verdict.UNDECIDED, "other limit")
    assert found.check.message.endswith("was judged by 2pp, and 1pp is what may be lost now.")


def test_a_command_names_the_data_that_was_used_last() -> None:
    standard = Standard(gates="a" * 16, gates_name="gates.toml")

    found = asked(EVALUATED, evaluated(gate_file="", data="my data/test.parquet"), standard=standard)

    assert found["evaluation"].command == "mlx eval digits/3 --data 'my data/test.parquet'"


def test_the_command_that_produces_evidence_names_the_version() -> None:
    assert producing_command("evaluation", version()).startswith("mlx eval digits/3 ")
    assert producing_command("quantization", version(parent="digits/2")).startswith("mlx quantize digits/2 ")
    assert producing_command("something", version()) == ""


@pytest.mark.parametrize(
    ("made", "flags"),
    [("static-int8", ""), ("dynamic-int8", " --method dynamic"), ("fp16", " --method fp16"), ("else", "")],
)
def test_the_command_for_a_quantization_makes_the_same_kind(made: str, flags: str) -> None:
    command = producing_command("quantization", version(parent="digits/2", quantized=made), data="t.parquet")

    assert command == f"mlx quantize digits/2 --calibration ROWS.parquet --data t.parquet{flags}"


def test_the_gates_inside_evidence_show_threshold_beside_measured_value() -> None:
    candidate = version(
        {"evaluation": {"verdict": "fail", "gates": [*GATES, {"name": "\x1b x"}, "nonsense"]}}
    )

    least, drop, strange = answers(evidence_of(candidate)["evaluation"])

    assert (least.name, least.threshold, least.measured) == (
        "evaluation: accuracy",
        ">= 0.9",
        "0.9300 [0.9100, 0.9500]",
    )
    assert (drop.threshold, drop.verdict) == ("max_drop 1pp", Verdict.FAIL)
    assert strange.verdict is Verdict.ERROR
    assert strange.name.isprintable()


def by_hand(candidate: Version, *override: str, policy: PromotionSettings = NEEDS) -> list[str]:
    found = (*asked(policy, candidate).values(), self_checked(policy, 1, ("it is broken",)))
    judged = lifted(found, policy, alias="production", override=override, reason="incident")
    return [one.name for one in judged if one.check.skipped == "let pass by hand: incident"]


def test_all_lifts_what_is_missing_and_nothing_that_speaks_against_the_version() -> None:
    candidate = version({"evaluation": "pass"}, quarantined="errors rose", archived="true")

    assert by_hand(candidate, "all") == ["consistency"]
    assert by_hand(candidate, QUARANTINE, SELF_CHECK) == [QUARANTINE, SELF_CHECK]
    assert by_hand(candidate, "evaluation") == []


@pytest.mark.parametrize("name", ["evalution", "archived", "min_age", ""])
def test_what_is_not_asked_cannot_be_lifted(name: str) -> None:
    with pytest.raises(UsageError, match="has no gate"):
        by_hand(version(), name)


def test_a_policy_that_forbids_it_offers_no_way_by_hand() -> None:
    policy = PromotionSettings(needs=("evaluation",), min_age="1d", allow_override=False)

    assert all(one.lift == () for one in asked(policy, version()).values())
    with pytest.raises(UsageError, match="allow_override"):
        by_hand(version(), "all", policy=policy)


def test_a_self_check_says_what_went_wrong_and_how_much_was_asked() -> None:
    policy = PromotionSettings()

    assert self_checked(policy, 1, ()).check.measured == "loads, 1 golden case agrees"
    assert self_checked(policy, 4, ()).check.measured == "loads, 4 golden cases agree"
    assert self_checked(policy, 0, ()).check.measured == "loads; it has no golden cases"
    failed = self_checked(policy, 2, ("Golden case 1: label is wrong.", "x")).check
    assert (failed.verdict, failed.message) == (Verdict.FAIL, "Golden case 1: label is wrong. x")


def test_an_archived_version_is_told_apart_and_nothing_lifts_that() -> None:
    found = asked(PromotionSettings(), version(archived="true"))["archived"]

    assert (found.check.verdict, found.lift) == (Verdict.FAIL, ())


def test_a_version_of_plain_mlflow_must_be_sealed_first() -> None:
    made = version_of(Row("digits", 3, 0, "", "", "", {}), {})
    assert made is not None

    found = asked(EVALUATED, made)

    assert (found["sealed"].check.verdict, found["sealed"].lift) == (Verdict.FAIL, ())
    assert found["sealed"].command == "mlx adopt digits/3"
    assert found["evaluation"].command == ""
