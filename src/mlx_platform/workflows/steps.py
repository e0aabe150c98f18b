"""What to do next with a version: commands that do what they say when they are pasted."""

from mlx_platform.core.errors import IntegrityError, NotFoundError
from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.policy import data_of, producing_command
from mlx_platform.registry.ref import VersionRef
from mlx_platform.registry.version import Version, evidence_of
from mlx_platform.workflows.context import Context


def next_steps(context: Context, version: Version, adopt: str = "") -> tuple[str, ...]:
    """The way of a version to production, from where it stands; `adopt` seals it, if anything does."""
    if version.doubt or version.stripped:
        return (f"mlx doctor registry {version.name}",)
    if not version.sealed:
        return (adopt or f"mlx list {version.name}",)
    if version.archived:
        return (f"mlx archive {version.ref} --undo",)
    if version.quarantined:
        return (f"mlx list {version.name}",)
    steps = [] if "evaluation" in evidence_of(version) else [evaluation_step(context, version)]
    if "production" in version.aliases:
        return (*steps, f"mlx serve {version.name}@production")
    to = "production" if "staging" in version.aliases else "staging"
    way = "promote" if _ready(context, version, to) else "gate"
    return (*steps, f"mlx {way} {version.ref} --to {to}")


def evaluation_step(context: Context, version: Version) -> str:
    """The command that evaluates a version, on the rows of the present production where those are known."""
    try:
        before = context.catalog.holders(version.name).get("production")
    except IntegrityError:
        before = None  # nobody can tell, and whoever calls says so
    own = context.settings.evaluation
    rows = rows_for(context, version, before)
    return producing_command("evaluation", version, data=rows, gates=not (own.gates or own.gate))


def rows_for(context: Context, version: Version, before: int | None) -> str:
    """The rows on which the present holder was evaluated, for a version that was not; else empty."""
    if "evaluation" in evidence_of(version):
        return ""  # its own say more
    try:
        holder = context.catalog.resolve(VersionRef(version.name, before)) if before else version
    except NotFoundError:
        return ""
    return data_of(evidence_of(holder).get("evaluation"))


def _ready(context: Context, version: Version, alias: str) -> bool:
    """Whether nothing is known that stands in the way."""
    needs = context.settings.promotion.get(alias, PromotionSettings()).needs
    found = evidence_of(version)
    passed = {kind for kind, summary in found.items() if summary.verdict == Verdict.PASS}
    return alias not in version.rolled_back and passed >= set(needs)
