"""How fast the subject answers, timed beside its baseline, where a gate or the command line asks."""

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.tensors import Array, row_count, text_column
from mlx_platform.evaluation.gates import GateFile
from mlx_platform.evaluation.latency import (
    LATENCY_METRICS,
    Timings,
    latency_ratios,
    measure_timings,
    time_in_turns,
)
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.answerer import Answerer, Running
from mlx_platform.workflows.evaluation.comparing import Compared
from mlx_platform.workflows.evaluation.layout import lay_out
from mlx_platform.workflows.subject import Subject, open_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_platform.inference.model import Model

_WARM_UP = 10  # calls
_SECONDS = 5.0
_PATIENCE = 120.0
_LEAST_CALLS, _MOST_CALLS = 200, 1000
_BATCHES, _BATCH_ROWS, _SAMPLE_ROWS = 16, 1024, 16


def with_latency(
    context: Context,
    data: Path,
    subject: Subject,
    baseline: Subject | None,
    compared: Compared,
    *,
    asked: GateFile,
    running: Running,
) -> Compared:
    """Add latencies and their ratios to what gates are answered by, where somebody asks for them.

    A call is `Model.predict` in this process: raw columns in, answers out, without HTTP. The rows are
    `running.timed_rows` at a time, drawn evenly from the first 16,384 of the file.

    Args:
        context: the command's context.
        data: the file or folder with the rows.
        subject: what is timed.
        baseline: what it is timed beside; nothing when it is the same package.
        compared: everything else that was measured.
        asked: the gates.
        running: how the models run.
    """
    if not running.latency and not any(gate.metric in LATENCY_METRICS for gate in asked.gates):
        return compared
    same = baseline is None or baseline.package.digest == subject.package.digest
    sides = [subject] if baseline is None or same else [subject, baseline]
    timings = _time(context, data, sides, asked, running)
    level, seed = asked.defaults.confidence, asked.defaults.seed
    found = measure_timings(timings, confidence=level, seed=seed)
    compared = replace(
        compared,
        measurements=compared.measurements | found,
        ratios=compared.ratios | latency_ratios(timings, confidence=level, seed=seed),
        timings=timings,
    )
    if compared.baseline is None:
        return compared
    theirs = found if same else measure_timings(timings, confidence=level, seed=seed, baseline=True)
    other = replace(compared.baseline, measurements=compared.baseline.measurements | theirs)
    return replace(compared, baseline=other)


def _time(
    context: Context, data: Path, sides: Sequence[Subject], asked: GateFile, running: Running
) -> Timings:
    answerers = [
        Answerer(
            subject,
            open_model(context, subject, device=running.device, threads=running.threads),
            running.timed_rows,
            baseline=place > 0,
        )
        for place, subject in enumerate(sides)
    ]
    calls = [
        _caller(answerer.model, sample, running.timed_rows)
        for answerer, sample in zip(answerers, _samples(context, data, answerers, asked), strict=True)
    ]
    names = " beside ".join(subject.ref for subject in sides)
    with context.progress.stage(f"timing {names}") as advance, _uncollected():
        for number in range(_WARM_UP):
            for call in calls:
                call(number)
        ours, theirs = time_in_turns(
            calls[0],
            calls[1] if len(calls) > 1 else None,
            seconds=_SECONDS,
            patience=_PATIENCE,
            least=_LEAST_CALLS,
            most=_MOST_CALLS,
            advance=advance,
        )
    session = answerers[0].model.session
    return Timings(ours, theirs, running.timed_rows, session.device, session.threads)


def _samples(
    context: Context, data: Path, answerers: Sequence[Answerer], asked: GateFile
) -> list[dict[str, Array]]:
    """The same rows for each model, as it takes them."""
    from mlx_platform.inference.sources.opening import open_dataset

    source = open_dataset(data)
    layout = lay_out(
        source, asked.dataset, context.settings.evaluation, answerers, slices=asked.slice_columns
    )
    wanted = tuple(dict.fromkeys(name for names in layout.features for name in names))
    parts = []
    for batch in islice(source.batches(_BATCH_ROWS, wanted), _BATCHES):
        # Files often come sorted, and the first rows would all be short or alike.
        places = np.unique(np.linspace(0, row_count(batch) - 1, _SAMPLE_ROWS).astype(np.intp))
        parts.append({name: batch[name][places] for name in wanted})
    rows = {name: _joined([part[name] for part in parts]) for name in wanted}
    return [{name: rows[name] for name in names} for names in layout.features]


def _joined(parts: Sequence[Array]) -> Array:
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    return text_column([row for part in parts for row in part])


def _caller(model: "Model", rows: Mapping[str, Array], size: int) -> Callable[[int], object]:
    """The calls by number: as many rows each, one after the other, and again from the first."""
    count = row_count(rows)
    order = np.arange(-(-count // size) * size) % count if size <= count else np.arange(size) % count
    places = order.reshape(-1, size)
    batches = [{name: column[some] for name, column in rows.items()} for some in places]
    return lambda number: model.predict(batches[number % len(batches)], batch_size=size)


@contextmanager
def _uncollected() -> "Iterator[None]":
    """Keep the garbage collector from what is timed."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
