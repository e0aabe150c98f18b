"""`mlx register`: what a training script left behind becomes a sealed package, and the package a version."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.text import did_you_mean
from mlx_platform.registry.ref import check_name
from mlx_platform.registry.version import ACTOR, Lineage, Version, check_lineage
from mlx_platform.workflows.commit import commit_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import version_facts
from mlx_platform.workflows.inputs import no_inputs
from mlx_platform.workflows.origin import Origin, open_origin
from mlx_platform.workflows.steps import next_steps

if TYPE_CHECKING:
    from mlx_platform.inference.dataset import Dataset
    from mlx_platform.inference.package import Package

_IF_EXISTS = ("reuse", "fail")


def register(
    context: Context,
    name: str,
    source: Path | str,
    *,
    dataset_version: str = "",
    params: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
    git_commit: str = "",
    golden: Path | None = None,
    baseline: Path | None = None,
    if_exists: str = "reuse",
    parent: str = "",
    description: str = "",
) -> Result:
    """Build a package from a source and register it as the model's next version.

    Args:
        context: the command's context.
        name: the model.
        source: an `.onnx` file, a folder with `model.onnx`, a `.skops` file, or what the registry has
            already: `models:/NAME/3`, `models:/NAME@ALIAS`, `runs:/RUN_ID/PATH`. What is known about that is
            kept, unless the arguments say otherwise.
        dataset_version: version of the training data.
        params: hyper-parameters.
        metrics: metrics of the training.
        git_commit: a hash, or `auto` for the one checked out here, with `+dirty` when files differ from it.
        golden: `golden.jsonl`, inputs with the answers expected.
        baseline: rows as in training; their profile is kept for drift.
        if_exists: `reuse` the version that has the same content, or `fail`.
        parent: a reference to the version that this one was made from.
        description: a sentence for people.

    Raises:
        NotFoundError: a file, or the parent, does not exist.
        UsageError: the source is no model that can be registered, or a flag cannot be used.
        ConflictError: the content is there and `if_exists` is `fail`.
    """
    check_name(name)
    _check_flags(golden, baseline, if_exists)
    rows = _read_baseline(baseline) if baseline else None
    given = Lineage(
        dataset_version=dataset_version,
        dataset_fingerprint=rows.fingerprint if rows else "",
        git_commit=commit_of(git_commit, Path.cwd()),
        params=params or {},
        metrics=metrics or {},
        parent=context.catalog.resolve(parent).ref if parent else "",
        description=description,
        tags={ACTOR: context.actor},
    )
    check_lineage(given)
    # Private to this user; whatever ends the command, the folder goes with it.
    with (
        open_origin(context, source) as origin,
        tempfile.TemporaryDirectory(prefix="mlx-register-") as folder,
    ):
        lineage = _together(origin.lineage, given)
        check_lineage(lineage)
        package, warnings = _build(context, origin, Path(folder) / "package", golden, rows)
        with context.progress.stage(f"registering {name}"):
            version, created = context.catalog.register(
                name, package, lineage, if_exists=cast("Literal['reuse', 'fail']", if_exists)
            )
    return _result(context, version, created, (*origin.warnings, *warnings))


def _together(known: Lineage, given: Lineage) -> Lineage:
    """What the origin says of itself, and over it what the user says."""
    return Lineage(
        dataset_version=given.dataset_version or known.dataset_version,
        dataset_fingerprint=given.dataset_fingerprint or known.dataset_fingerprint,
        git_commit=given.git_commit or known.git_commit,
        params={**known.params, **given.params},
        metrics={**known.metrics, **given.metrics},
        parent=given.parent or known.parent,
        description=given.description or known.description,
        tags={**known.tags, **given.tags},
    )


def _check_flags(golden: Path | None, baseline: Path | None, if_exists: str) -> None:
    if if_exists not in _IF_EXISTS:
        raise UsageError(
            f"--if-exists takes reuse or fail, not {if_exists!r}.", hint=did_you_mean(if_exists, _IF_EXISTS)
        )
    for path, what in ((golden, "file of golden cases"), (baseline, "baseline")):
        if path is not None and not path.exists():
            raise NotFoundError(f"There is no {what} {path}.")


def _read_baseline(path: Path) -> "Dataset":
    """The rows of a baseline, read before anything is built."""
    from mlx_platform.inference.dataset import read_dataset

    return read_dataset(path)


def _build(
    context: Context, origin: Origin, out: Path, golden: Path | None, rows: "Dataset | None"
) -> tuple["Package", tuple[str, ...]]:
    from mlx_platform.drift.profile import Profile
    from mlx_platform.inference.build import BuildOptions, build_package
    from mlx_platform.inference.package import BASELINE, with_file

    if origin.package is not None and golden is None and rows is None:
        return origin.package, ()
    with context.progress.stage(f"building the package of {origin.path.name}"):
        # Rows of the baseline never become golden cases: they may be personal, and a package travels.
        built = build_package(origin.path, out, BuildOptions(golden=golden))
    if built.package.baseline_path:
        # One that cannot be read would be noticed only when somebody looks for drift.
        Profile.from_json(built.package.baseline_path.read_bytes())
    if rows is None:
        return built.package, built.warnings
    with context.progress.stage("profiling the baseline"):
        return with_file(built.package, BASELINE, _profile(context, built.package, rows)), built.warnings


def _profile(context: Context, package: "Package", rows: "Dataset") -> bytes:
    from mlx_platform.drift.extract.inputs import InputFeatures, learn
    from mlx_platform.drift.features import positions
    from mlx_platform.drift.profile import build_profile
    from mlx_platform.inference.model import Model

    columns = rows.features(drop=no_inputs(context.settings.evaluation, package.spec.columns))
    model = Model.load(package, device="cpu")
    answers = model.predict(columns).columns
    learnt = learn(InputFeatures(package.spec, None), [columns])
    watched = InputFeatures(package.spec, package.root, learnt.own)(columns)
    places = positions(package.spec, watched)
    profile = build_profile(watched, answers, places)
    return profile.with_vocabularies(learnt.known).to_json()


def _result(context: Context, version: Version, created: bool, warnings: tuple[str, ...]) -> Result:
    if not created:
        warnings = (
            *warnings,
            f"{version.ref} has this content already; parameters, metrics and baseline stay as they were.",
        )
    return Result(
        command="register",
        data=version.document() | {"created": created},
        report=Report(
            title=f"register {version.name}",
            summary=f"Registered {version.ref}." if created else f"{version.ref} has this content already.",
            facts=version_facts(version)[1:],
            next_steps=next_steps(context, version),
        ),
        warnings=warnings,
    )
