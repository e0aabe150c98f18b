"""Candidates beside each other: what each costs in bytes, time and answers."""

import math
from collections.abc import Iterator, Sequence

from mlx_platform.core.report import Plot, Points, Table
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.quantization.candidates import Candidate
from mlx_platform.workflows.quantization.outcome import Outcome

_LAYERS_SHOWN = 200
_LEAST = 1e-9  # no divergence at all, on a scale of powers


def pareto(candidates: Sequence[Candidate]) -> list[bool]:
    """Which candidates no other one beats: none is as small, as fast and as close, and better in one."""
    points = [(one.size_ratio, 1 / one.race.speedup, one.distance.divergence) for one in candidates]
    return [
        not any(
            all(mine >= theirs for mine, theirs in zip(point, other, strict=True)) and point != other
            for other in points
        )
        for point in points
    ]


def candidates_table(outcome: Outcome) -> Iterator[Table]:
    """All candidates where there are several, in the order in which they were made."""
    candidates = outcome.choosing.candidates
    if len(candidates) < 2:
        return
    looks = {id(look.candidate): look.judgement.verdict for look in outcome.choosing.looks}
    changed = outcome.judgement.agreement is not None
    rows: list[tuple[str | Verdict, ...]] = []
    for candidate, best in zip(candidates, pareto(candidates), strict=True):
        distance, race = candidate.distance, candidate.race
        loss = f"{1 - distance.loss:.1%}" if changed else f"{distance.loss:.2%}"
        speed = f"{race.speedup:.2f} [{race.lower:.2f}, {race.upper:.2f}]"
        mark = "chosen" if candidate is outcome.candidate else "unbeaten" if best else ""
        judged = looks.get(id(candidate), "not judged")
        rows.append(
            (
                printable(candidate.name),
                f"{candidate.size_ratio:.2f}",
                speed,
                f"{distance.divergence:.2g}",
                loss,
                judged,
                mark,
            )
        )
    head = ("candidate", "size, times", "times as fast", "divergence", "same answer" if changed else "error")
    yield Table("Candidates", (*head, "verdict", ""), tuple(rows), numeric=(1, 2, 3, 4))


def charts(outcome: Outcome) -> Iterator[Plot]:
    """Size and time against divergence, and what the search found on its way."""
    candidates = outcome.choosing.candidates
    if len(candidates) > 1:
        for what, x, values in (
            ("size", "size, as a share of the source's", [one.size_ratio for one in candidates]),
            ("time", "time of one row, as a share", [1 / one.race.speedup for one in candidates]),
        ):
            yield Plot(
                f"Candidates: divergence over {what}",
                x,
                "divergence, as a power of ten",
                tuple(_groups(outcome, values)),
                kind="dots",
                note="The closer to the lower left, the better; nothing beats those that are unbeaten"
                " in size, time and divergence together.",
            )
    surgeon = outcome.choosing.surgeon
    if surgeon is not None and surgeon.search is not None and surgeon.search.points:
        points = surgeon.search.points
        yield Plot(
            "Layers left in float32",
            "layers in float32",
            "divergence from the source's answers",
            (
                Points(
                    "measured by the search",
                    tuple(float(len(reverted)) for reverted, _ in points),
                    tuple(distance.divergence for _, distance in points),
                ),
            ),
            kind="dots",
            note=f"A dot is a candidate, on {outcome.rows.search.rows:,} rows that judge nothing.",
        )


def _groups(outcome: Outcome, values: Sequence[float]) -> Iterator[Points]:
    """The chosen candidate, those that nothing beats, and the others."""
    candidates = outcome.choosing.candidates
    groups: dict[str, list[tuple[Candidate, float]]] = {"chosen": [], "unbeaten": [], "beaten": []}
    for candidate, value, best in zip(candidates, values, pareto(candidates), strict=True):
        name = "chosen" if candidate is outcome.candidate else "unbeaten" if best else "beaten"
        groups[name].append((candidate, value))
    for name, found in groups.items():
        if found:
            yield Points(
                name,
                tuple(value for _, value in found),
                tuple(math.log10(max(candidate.distance.divergence, _LEAST)) for candidate, _ in found),
                labels=tuple(candidate.name for candidate, _ in found),
            )


def layers_table(outcome: Outcome) -> Iterator[Table]:
    """The error that has gathered at each layer, and what a search found the layer to be worth."""
    made, surgeon = outcome.made, outcome.choosing.surgeon
    search = surgeon.search if surgeon else None
    plan = surgeon.base.made.built.plan if surgeon else made.built.plan
    errors = {entry.node: entry.error for entry in made.layer_errors}
    gains = {one.node: one.gain for one in search.ranking} if search else {}
    layers = sorted(plan.layers, key=lambda layer: -max(errors.get(layer.node, 0.0), 0.0))
    if not layers:
        return
    rows = tuple(
        (
            printable(layer.node),
            layer.operator,
            f"{layer.parameters:,}",
            f"{errors[layer.node]:.2%}" if layer.node in errors else "",
            *((f"{gains[layer.node]:+.2g}" if layer.node in gains else "",) if search else ()),
            "float32" if layer.node in outcome.candidate.reverted else outcome.short,
        )
        for layer in layers[:_LAYERS_SHOWN]
    )
    gain = ("gain in float32 alone",) if search else ()
    yield Table(
        "Layers, the largest error first",
        ("node", "operator", "weights", "error", *gain, "type"),
        rows,
        numeric=(2, 3, 4) if search else (2, 3),
    )
