"""`mlx dataset`: labels that came back, kept increment by increment for the next training run."""

from collections.abc import Sequence
from pathlib import Path

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import plural, printable
from mlx_platform.evaluation.sample_format import SampledRow
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.datasets.labelled import Fates, read_labelled
from mlx_platform.workflows.datasets.store import Datasets, Increment, check_name

_OWN = ("mlx.input_hash", "mlx.time", "mlx.version")


def add(
    context: Context,
    name: str,
    files: Sequence[Path],
    *,
    sample: Path | None = None,
    label_column: str = "label",
    keep_masked: bool = False,
) -> Result:
    """Take labels in as the next increment of a dataset.

    Rows that are there with the same label are not taken again; with another one the newest counts.

    Args:
        context: the command's context.
        name: the dataset; it is made where it is not there.
        files: labelled rows: JSON Lines of a sample, CSV, or an export of Label Studio.
        sample: the sample as JSON Lines, for files that name rows by their ids.
        label_column: of a CSV.
        keep_masked: also take rows whose personal data were masked.

    Raises:
        UsageError: a file cannot be read, or its ids stand for nothing.
        NotFoundError: there is no such file.
        UndecidedError: there is no new label in them.
        UnavailableError: another import is writing.
        IntegrityError: an earlier increment is damaged.
    """
    check_name(name)
    fates = Fates()
    rows = read_labelled(files, sample, label=label_column, keep_masked=keep_masked, fates=fates)
    datasets = Datasets(context)
    with datasets.importing(name):
        known = datasets.hashes(name)
        fresh: list[SampledRow] = []
        for row in rows:
            if row.input_hash in known and known[row.input_hash] == row.label:
                fates.add("known", row.id)
            else:
                fresh.append(row)
        if not fresh:
            raise UndecidedError(f"There is no new label for {name}: {_told(fates)}.")
        _check_types([*known.values(), *(row.label for row in fresh)])
        increment = datasets.add(name, fresh, fates.document())
    relabelled = sum(row.input_hash in known for row in fresh)
    return Result(
        command="dataset import",
        data={"increment": increment.document(), "relabelled": relabelled},
        report=Report(
            title=f"dataset import {name}",
            summary=f"{plural(increment.rows, 'labelled row')} in {increment.ref}.",
            facts=_facts(increment),
            sections=(_fates(increment),),
            next_steps=(
                f"mlx dataset export {increment.ref} -o train.parquet",
                f"mlx register NAME SOURCE --dataset-version {increment.ref}",
            ),
        ),
        warnings=_warnings(fates, relabelled),
    )


def _check_types(labels: Sequence[object]) -> None:
    """Refuse labels that no training could take together; whole numbers and others go together."""
    kinds = {
        "truth values" if isinstance(label, bool) else "text" if isinstance(label, str) else "numbers"
        for label in labels
    }
    if len(kinds) > 1:
        first, *others = sorted(kinds, reverse=True)
        raise UsageError(
            f"Some labels are {first} and others are {' or '.join(others)}.",
            hint="Give all labels of a dataset one type.",
        )


def _told(fates: Fates) -> str:
    parts = [f"{count:,} {fate}" for fate, count in sorted(fates.counts.items()) if fate != "labelled"]
    return ", ".join(parts) or "no row has one"


def _warnings(fates: Fates, relabelled: int) -> tuple[str, ...]:
    said = {
        "unknown": "ids are in no sample",
        "contradicted": "rows have labels that contradict each other, and are left out",
        "masked": "rows do not hold what was asked, for personal data are masked; --keep-masked takes them",
    }
    found = [
        f"{fates.counts[fate]:,} {text}: {', '.join(fates.ids[fate])}."
        for fate, text in said.items()
        if fates.counts[fate]
    ]
    if relabelled:
        found.append(f"{plural(relabelled, 'row')} had another label before; the new one counts.")
    return tuple(found)


def listing(context: Context, name: str | None = None) -> Result:
    """List datasets, or the increments of one.

    Args:
        context: the command's context.
        name: of one.

    Raises:
        NotFoundError: there is no such dataset.
        UsageError: no name of a dataset.
        IntegrityError: an increment is damaged.
    """
    datasets = Datasets(context)
    chains = [datasets.upto(name)] if name else [datasets.chain(each) for each in datasets.names()]
    found = [increment for chain in chains for increment in chain]
    rows = tuple(
        (each.ref, f"{each.rows:,}", f"{each.weight:,.0f}", each.created, ", ".join(each.models))
        for each in found
    )
    columns = ("increment", "rows", "stand for", "created", "answered by")
    return Result(
        command="dataset list",
        data={"increments": [each.document() for each in found]},
        report=Report(
            title="datasets",
            summary=f"{plural(len(chains), 'dataset')}, {plural(len(found), 'increment')}.",
            sections=(Table("", columns, rows, numeric=(1, 2)),) if rows else (),
            next_steps=()
            if rows
            else ("mlx sample REF --traffic DIR --strategy uncertain -n 200 -o F.jsonl",),
        ),
    )


def show(context: Context, ref: str) -> Result:
    """Tell where an increment comes from, and how its labels are distributed.

    Args:
        context: the command's context.
        ref: `NAME@DIGEST`, or `NAME` for the newest.

    Raises:
        NotFoundError: there is no such dataset or increment.
        UsageError: no name of a dataset.
        IntegrityError: it is damaged.
    """
    datasets = Datasets(context)
    increment = datasets.upto(ref)[-1]
    counted = datasets.rows(increment)["label"].value_counts().to_pylist()
    labels = sorted(((str(each["values"]), each["counts"]) for each in counted), key=lambda e: (-e[1], e[0]))
    table = Table(
        "Labels",
        ("label", "rows"),
        tuple((printable(label, 80), f"{count:,}") for label, count in labels[:30]),
        numeric=(1,),
    )
    return Result(
        command="dataset show",
        data={"increment": increment.document(), "labels": dict(labels[:1000])},
        report=Report(
            title=f"dataset {increment.ref}",
            summary=f"{increment.ref}: {plural(increment.rows, 'labelled row')}.",
            facts=_facts(increment),
            sections=(table, _fates(increment)),
            next_steps=(f"mlx dataset export {increment.ref} -o train.parquet",),
        ),
    )


def export(context: Context, ref: str, output: Path, *, increment_only: bool = False) -> Result:
    """Write labelled rows for training: columns as they were asked, `id`, `weight` and `label`.

    Args:
        context: the command's context.
        ref: `NAME@DIGEST` for all increments up to it, or `NAME` for all.
        output: a Parquet file.
        increment_only: only the rows of that one increment.

    Raises:
        NotFoundError: there is no such dataset or increment.
        UsageError: the file is none of Parquet, or increments have columns of different types.
        IntegrityError: an increment is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output.suffix.lower() not in {".parquet", ".pq"}:
        raise UsageError(f"{output} is to be a Parquet file: end its name with .parquet.")
    datasets = Datasets(context)
    chain = datasets.upto(ref)
    tables = [datasets.rows(each) for each in (chain[-1:] if increment_only else chain)]
    try:
        every = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise UsageError(
            f"Increments of {chain[-1].name} have columns of different types: {printable(str(error), 200)}."
        ) from error
    newest = {key: place for place, key in enumerate(every["mlx.input_hash"].to_pylist())}
    rows = every.take(sorted(newest.values())).drop_columns(list(_OWN))
    content = pa.BufferOutputStream()
    pq.write_table(rows, content)
    write_atomic(output, content.getvalue().to_pybytes())
    replaced = every.num_rows - rows.num_rows
    return Result(
        command="dataset export",
        data={"ref": chain[-1].ref, "rows": rows.num_rows, "replaced": replaced, "output": str(output)},
        report=Report(
            title=f"dataset export {chain[-1].ref}",
            summary=f"{plural(rows.num_rows, 'labelled row')} of {chain[-1].ref} in {output}.",
            facts=(Fact("replaced", f"{plural(replaced, 'older label')}"),) if replaced else (),
            next_steps=(f"mlx register NAME SOURCE --dataset-version {chain[-1].ref}",),
        ),
    )


def _facts(increment: Increment) -> tuple[Fact, ...]:
    facts = {
        "digest": increment.digest,
        "parent": increment.parent[:16] or "none: it is the first",
        "stand for": f"about {increment.weight:,.0f} rows",
        "drawn by": ", ".join(increment.strategies),
        "answered by": ", ".join(increment.models),
        "from": f"{increment.first} to {increment.last}",
    }
    return tuple(Fact(label, value) for label, value in facts.items())


def _fates(increment: Increment) -> Table:
    rows = tuple(
        (fate, f"{found['rows']:,}", ", ".join(found["examples"]) if fate != "labelled" else "")
        for fate, found in increment.fates.items()
        if found["rows"]
    )
    return Table("What became of the labels", ("", "rows", "such as"), rows, numeric=(1,))
