"""What is compared of a version: tables of names and values, from its tags and from its package."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlx_platform.core.text import plural, printable
from mlx_platform.registry.damage import damage_of
from mlx_platform.registry.findings import metrics_of
from mlx_platform.registry.version import EVIDENCE_PREFIX, INPUTS, OUTPUTS, TASK, Version, evidence_of
from mlx_platform.workflows.differences.part import Part, Value, compare

if TYPE_CHECKING:
    from mlx_platform.inference.outline import Outline
    from mlx_platform.inference.package import Package
    from mlx_platform.inference.spec import StepSpec


def metrics(version: Version) -> dict[str, Value]:
    """Training metrics, and what was measured later with its verdict."""
    found: dict[str, Value] = dict(sorted(version.metrics.items()))
    for kind, evidence in evidence_of(version).items():
        found[f"evidence.{kind}"] = printable(evidence.verdict, 40)
        found |= {f"{kind}.{key}": value for key, value in metrics_of(evidence.numbers).items()}
    return found


def params(version: Version) -> dict[str, Value]:
    """Hyper-parameters."""
    return dict(sorted(version.params.items()))


def lineage(version: Version) -> dict[str, Value]:
    """Where it comes from and where it stands, which is left out where nobody can tell."""
    document = version.document()
    keys = ("dataset_version", "dataset_fingerprint", "git_commit", "parent", "description")
    found = {key: document[key] for key in keys} | {"quantized": "yes" if version.quantized else "no"}
    return found if version.doubt else found | {"aliases": ", ".join(version.aliases), "state": version.state}


def gaps(name: str, before: Version, after: Version) -> str:
    """Why a part of two registered versions cannot be compared, or not all of it; empty when it can."""
    if name == "lineage":
        doubt = before.doubt or after.doubt
        return f"{doubt} Aliases and states are not known." if doubt else ""
    damaged = [
        f"{damage.tag} of {version.ref}"
        for version in (before, after)
        for damage in damage_of(version)
        if damage.tag == f"mlx.{name}" or (name == "metrics" and damage.tag.startswith(EVIDENCE_PREFIX))
    ]
    return f"{printable(', '.join(damaged), 300)} cannot be read." if damaged else ""


def io_of_tags(version: Version) -> dict[str, Value]:
    """The signature as the registry knows it, without the package."""
    found: dict[str, Value] = {"task": version.tags.get(TASK, "")}
    for side, tag in (("input", INPUTS), ("output", OUTPUTS)):
        for tensor in filter(None, version.tags.get(tag, "").split("; ")):
            name, _, shape = tensor.partition(" ")
            found[f"{side} {name}"] = shape
    return found


def io_of_package(package: "Package") -> dict[str, Value]:
    """The signature, the labels and every step of the pipeline."""
    spec = package.spec
    found: dict[str, Value] = {"task": spec.task}
    for side, tensors in (("input", spec.inputs), ("output", spec.outputs)):
        for tensor in tensors:
            found[f"{side} {tensor.name}"] = str(tensor).removeprefix(f"{tensor.name} ")
    found["labels"] = ", ".join(printable(label, 80) for label in spec.labels)
    for side, steps in (("pre", spec.pre), ("post", spec.post)):
        found |= {f"{side} step {place}": _step(step) for place, step in enumerate(steps, start=1)}
    for key in ("max_rows", "max_text_chars", "max_image_bytes"):
        found[f"limit {key}"] = getattr(spec.limits, key)
    return found


def files(package: "Package") -> dict[str, Value]:
    """The size of all files together, and the digest of each."""
    found: dict[str, Value] = {"size": package.size}
    return found | {entry.path: entry.sha256 for entry in package.manifest.files}


def environment(package: "Package") -> dict[str, Value] | None:
    """The exact versions that the package was built with; None where nobody can read them."""
    from mlx_platform.inference.package import LOCK

    try:
        lock = tomllib.loads((package.root / LOCK).read_text())
    except (OSError, ValueError):
        return None
    packages = lock.pop("packages", {})
    plain = {key: value for key, value in lock.items() if isinstance(value, str)}
    return plain | (dict(packages) if isinstance(packages, dict) else {})


def graph(before: "Outline", after: "Outline") -> Part:
    """The networks: versions, sizes, and operators by kind with how many are set up differently."""
    notes = {}
    for kind in {*before.nodes, *after.nodes}:
        gone, come = _changed(before.shapes, after.shapes, kind)
        if gone or come:
            # A node that was changed is one that went and one that came.
            changed = min(gone, come)
            said = [f"{changed} set up differently" if changed else ""]
            said += [f"{gone - changed} fewer" if gone > changed else ""]
            said += [f"{come - changed} more" if come > changed else ""]
            notes[f"operator {kind}"] = ", ".join(filter(None, said))
    if weights := _weights(before.weights, after.weights):
        notes["weights"] = weights
    return compare("graph", _counts(before), _counts(after), notes)


def _counts(outline: "Outline") -> dict[str, Value]:
    found: dict[str, Value] = {
        "nodes": sum(outline.nodes.values()),
        "parameters": outline.parameters,
        "bytes of tensors": outline.bytes,
        "weights": len(outline.weights),
        "tensors in other files": outline.outside,
        "producer": outline.producer,
        "IR version": outline.ir_version,
    }
    found |= {f"opset {domain}": version for domain, version in sorted(outline.opsets.items())}
    return found | {f"operator {kind}": count for kind, count in outline.nodes.items()}


def _changed(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int], kind: str
) -> tuple[int, int]:
    old = Counter({key: count for key, count in before.items() if key[0] == kind})
    new = Counter({key: count for key, count in after.items() if key[0] == kind})
    return (old - new).total(), (new - old).total()


def _weights(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    both = before.keys() & after.keys()
    changed = sum(before[name] != after[name] for name in both)
    said = [f"{changed:,} of {plural(len(both), 'weight')} changed" if changed else ""]
    said += [f"{len(after) - len(both):,} added" if len(after) > len(both) else ""]
    said += [f"{len(before) - len(both):,} removed" if len(before) > len(both) else ""]
    return ", ".join(filter(None, said))


def _step(step: "StepSpec") -> str:
    options: Any = dict(step.options)
    shown = json.dumps(options, sort_keys=True, default=str) if options else ""
    return printable(f"{step.kind} {shown}".strip(), 300)
