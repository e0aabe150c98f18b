import json
from typing import Any

import pytest

from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.policy import QUARANTINE, missing, producing_command
from mlx_platform.registry.version import Row, Version, evidence_of, version_of

DIGEST = "d" * 64
NEEDS = PromotionSettings(needs=("evaluation", "consistency"))


def version(found: dict[str, str] | None = None, **tags: str) -> Version:
    summaries = {
        f"mlx.evidence.{kind}": json.dumps({"digest": DIGEST, "verdict": verdict})
        for kind, verdict in (found or {}).items()
    }
    written: dict[str, Any] = {"mlx.digest": DIGEST} | {f"mlx.{key}": value for key, value in tags.items()}
    made = version_of(Row("digits", 3, 0, "", "", "", written | summaries), {})
    assert made is not None
    return made


def verdicts(policy: PromotionSettings, candidate: Version) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in missing(policy, candidate, evidence_of(candidate))}


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
    assert verdicts(PromotionSettings(needs=("evaluation",)), version({"evaluation": written})) == {
        "evaluation": verdict
    }


def test_an_alias_that_needs_nothing_asks_nothing() -> None:
    assert missing(PromotionSettings(), version(), {}) == ()


def test_a_quantized_version_needs_its_quantization_wherever_others_need_evidence() -> None:
    candidate = version({"evaluation": "pass"}, quantized="static-int8", parent="digits/2")

    assert verdicts(PromotionSettings(needs=("evaluation",)), candidate)["quantization"] is Verdict.UNDECIDED
    assert verdicts(PromotionSettings(), candidate) == {}


def test_a_quarantine_stands_in_every_way() -> None:
    candidate = version(quarantined="errors rose\x1b[31m")

    check = missing(PromotionSettings(), candidate, {})[0]

    assert (check.name, check.verdict) == (QUARANTINE, Verdict.FAIL)
    assert check.message.isprintable()


def test_the_command_that_produces_evidence_names_the_version() -> None:
    assert producing_command("evaluation", version()).startswith("mlx eval digits/3 ")
    assert producing_command("quantization", version(parent="digits/2")).startswith("mlx quantize digits/2 ")
    assert producing_command("something", version()) == ""
