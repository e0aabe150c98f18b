"""What an alias asks of a version before it may hold it."""

from collections.abc import Mapping

from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.registry.version import EvidenceSummary, Version

QUARANTINE = "quarantine"
_QUANTIZATION = "quantization"


def missing(
    policy: PromotionSettings, version: Version, evidence: Mapping[str, EvidenceSummary]
) -> tuple[Check, ...]:
    """Hold the evidence about this very digest against the policy.

    Args:
        policy: the kinds of evidence that the alias needs. A quantized version needs the evidence of its
            quantization wherever others need that of their evaluation.
        version: the candidate.
        evidence: by kind, about the version's digest.

    Returns:
        A check per need, and one for a quarantine. None for an alias that needs nothing.
    """
    needs: list[str] = list(dict.fromkeys(policy.needs))
    if version.quantized and needs and _QUANTIZATION not in needs:
        needs.append(_QUANTIZATION)
    checks = [_judge(need, evidence.get(need), version) for need in needs]
    if version.quarantined:
        checks.append(
            Check(
                name=QUARANTINE,
                verdict=Verdict.FAIL,
                measured="quarantined",
                threshold="not quarantined",
                message=f"{version.ref} is quarantined: {printable(version.quarantined, 200)}",
                group="promotion",
            )
        )
    return tuple(checks)


def producing_command(kind: str, version: Version) -> str:
    """The command that produces evidence of a kind for this version."""
    commands = {
        "evaluation": f"mlx eval {version.ref} --data TEST.parquet --gates gates.toml",
        "quantization": f"mlx quantize {printable(version.parent) or version.ref} "
        "--calibration ROWS.parquet --data TEST.parquet",
        "consistency": f"mlx consistency {version.ref} --traffic DIR",
    }
    return commands.get(kind, "")


def _judge(need: str, found: EvidenceSummary | None, version: Version) -> Check:
    threshold = f"{need} passed for this digest"
    if found is None:
        return Check(
            name=need,
            verdict=Verdict.UNDECIDED,
            measured="no evidence",
            threshold=threshold,
            message=f"There is no {need} of {version.ref} with this digest.",
            group="promotion",
        )
    verdict = Verdict(found.verdict) if found.verdict in set(Verdict) else Verdict.ERROR
    passed = verdict is Verdict.PASS
    return Check(
        name=need,
        verdict=verdict,
        measured=printable(found.verdict, 40) or "no verdict",
        threshold=threshold,
        message=""
        if passed
        else f"The {need} of {version.ref} from {printable(found.created, 40)} did not pass.",
        group="promotion",
    )
