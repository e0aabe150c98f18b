"""`mlx top`: what a running server does, from one look at its metrics to the next."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlx_platform.core.clock import both_zones
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import printable
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.watching.figures import Interval, figures
from mlx_platform.workflows.watching.scrape import Scrape, scrape, token_of

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_FULL_MEMORY = 0.85  # of a GPU, from which on the next large batch may not fit


def top(context: Context, url: str, *, every: float = 2.0) -> Result:
    """What a server did for some seconds.

    Args:
        context: settings and clock.
        url: of the server's admin listener.
        every: how many seconds.

    Raises:
        UnavailableError: it does not answer.
        UsageError: the URL is none, or the server wants a token that is not there.
        NotFoundError: whoever answers has no metrics of ours.
    """
    return next(watch(context, url, every=every))


def watch(context: Context, url: str, *, every: float = 2.0) -> Iterator[Result]:
    """The same, again and again, each time since the last time. Ends with an error only."""
    token = token_of(context.settings.serving.admin_token_env)
    before = scrape(url, token)
    while True:
        time.sleep(every)
        after = scrape(url, token)
        yield _result(context, url, before, after)
        before = after


def _result(context: Context, url: str, before: Scrape, after: Scrape) -> Result:
    found = figures(Interval(before, after))
    model = next((labels for labels, _ in after.rows("mlx_model_info")), {})
    ref = f"{model.get('model', '?')}/{model.get('version', '?')}"
    data = {
        "url": url,
        "model": model.get("model", ""),
        "version": model.get("version", ""),
        "digest": model.get("digest", ""),
        "device": model.get("device", ""),
        **found,
    }
    process = found["process"]
    facts = (
        Fact("time", both_zones(context.clock())),
        Fact("device", f"{model.get('device', '?')} ({model.get('provider', '?')})"),
        Fact("state", "ready" if found["ready"] else "not ready"),
        Fact("processes", str(found["processes"])),
        *_moved(found["drift"], context.settings.drift.warn),
        Fact("CPU", f"{process['cores']:.2f} cores"),
        Fact("memory", f"{_bytes(process['resident_bytes'])}, {process['open_files']:.0f} open files"),
    )
    sections = (_requests(found), _stages(found), _batches(found), _counts(found), _gpus(found))
    return Result(
        command="top",
        data=data,
        report=Report(
            title=f"{ref} on {url}",
            summary=f"{ref}: {found['predictions_per_second']:,.1f} predictions/s "
            f"over {found['seconds']:.1f} s on {url}.",
            facts=facts,
            sections=tuple(section for section in sections if section is not None),
        ),
        warnings=_warnings(found),
    )


def _warnings(found: Mapping[str, Any]) -> tuple[str, ...]:
    said = []
    if not found["ready"]:
        said.append("The server is not ready.")
    if found["degraded"]:
        said.append("The server is degraded: it does not run on the device that was asked for.")
    if found["batching_fault"]:
        said.append("Every run has one row although requests wait: /debug/config says why.")
    if found["debug_mode"]:
        said.append("Debug mode is on.")
    if found["traffic"].get("dropped_now"):
        said.append(f"{found['traffic']['dropped_now']:,.0f} records of the traffic log were lost.")
    for gpu in found["gpus"]:
        total = gpu.get("memory_total_bytes", 0)
        if total and gpu.get("memory_used_bytes", 0) > _FULL_MEMORY * total:
            said.append(f"The memory of GPU {gpu['gpu']} is nearly full.")
    return tuple(said)


def _requests(found: Mapping[str, Any]) -> Table | None:
    rows = [
        (
            each["endpoint"],
            f"{each['per_second']:,.1f}",
            _milliseconds(each["p50_seconds"]),
            _milliseconds(each["p90_seconds"]),
            _milliseconds(each["p99_seconds"]),
            f"{each['share_4xx']:.1%}",
            f"{each['share_5xx']:.1%}",
        )
        for each in found["requests"]
    ]
    columns = ("endpoint", "per second", "P50 ms", "P90 ms", "P99 ms", "4xx", "5xx")
    return _table("Requests", columns, rows)


def _stages(found: Mapping[str, Any]) -> Table | None:
    rows = [
        (
            each["stage"],
            _milliseconds(each["mean_seconds"]),
            _milliseconds(each["p99_seconds"]),
            f"{each['share']:.0%}",
        )
        for each in found["stages"]
    ]
    return _table("Stages", ("stage", "mean ms", "P99 ms", "share"), rows)


def _batches(found: Mapping[str, Any]) -> Table | None:
    batches = found["batches"]
    row = (
        f"{batches['runs_per_second']:,.1f}",
        f"{batches['rows_per_second']:,.1f}",
        "" if math.isnan(batches["mean_rows"]) else f"{batches['mean_rows']:.1f}",
        _milliseconds(batches["p50_wait_seconds"]),
        _milliseconds(batches["p99_wait_seconds"]),
        f"{batches['queue_rows']:.0f}",
        f"{batches['in_flight']:.0f}",
    )
    columns = ("runs/s", "rows/s", "rows of a run", "wait P50 ms", "wait P99 ms", "rows waiting", "in flight")
    return Table("Batches", columns, (row,), numeric=tuple(range(len(columns))))


def _counts(found: Mapping[str, Any]) -> Table | None:
    """What is counted only when it happens: failures, the cache, the traffic log."""
    rows = [
        (f"failed: {reason.replace('_', ' ')}", f"{count:,.0f}")
        for reason, count in found["failures"].items()
        if count
    ]
    asked = sum(found["cache"].values())
    rows += [
        (f"cache: {outcome}", f"{count:,.0f} ({count / asked:.0%})")
        for outcome, count in found["cache"].items()
        if asked
    ]
    if found["traffic"]:
        traffic = found["traffic"]
        rows.append(("records logged per second", f"{traffic['logged_per_second']:,.1f}"))
        rows.append(("records waiting, and lost since the start", _pair(traffic)))
    return _table("Counts", ("what", "count"), rows)


def _pair(traffic: Mapping[str, float]) -> str:
    return f"{traffic['pending']:,.0f}, {traffic['dropped']:,.0f}"


def _gpus(found: Mapping[str, Any]) -> Table | None:
    rows = [
        (
            f"{each['gpu']} {each['name']}",
            f"{each['utilization_ratio']:.0%}" if "utilization_ratio" in each else "",
            _bytes(each["memory_used_bytes"]) if "memory_used_bytes" in each else "",
            _bytes(each["memory_total_bytes"]) if "memory_total_bytes" in each else "",
            f"{each['temperature_celsius']:.0f} °C" if "temperature_celsius" in each else "",
        )
        for each in found["gpus"]
    ]
    return _table("GPUs", ("GPU", "busy", "memory used", "of", "temperature"), rows)


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table | None:
    return Table(title, columns, tuple(rows), numeric=tuple(range(1, len(columns)))) if rows else None


def _milliseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1000:,.2f}"


def _bytes(count: float) -> str:
    power = min(int(math.log(count, 1024)), len(_UNITS) - 1) if count >= 1 else 0
    return f"{count / 1024**power:,.1f} {_UNITS[power]}"


def _moved(drift: Sequence[Mapping[str, Any]], limit: float) -> tuple[Fact, ...]:
    """The features that have left the baseline so far that a window would warn of them."""
    named = [
        f"{printable(each['feature'], 40)} {each['psi_adjusted']:.2f}"
        for each in drift
        if each["psi_adjusted"] >= limit
    ]
    return (Fact("drift", ", ".join(named)),) if named else ()
