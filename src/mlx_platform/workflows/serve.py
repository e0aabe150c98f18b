"""`mlx serve`: one version over HTTP, until somebody stops it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.settings import ServingSettings
from mlx_platform.core.tables import changed
from mlx_platform.core.text import plural
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.embedding import open_embedder
from mlx_platform.workflows.subject import Subject, alias_warnings, open_model, open_subject

if TYPE_CHECKING:
    from mlx_platform.serving.metrics import Metrics
    from mlx_platform.serving.server import OnReady
    from mlx_platform.traffic.writer import TrafficWriter

_logger = logging.getLogger(__name__)


def serve(
    context: Context,
    ref: str,
    *,
    device: str = "auto",
    host: str | None = None,
    port: int | None = None,
    admin_port: int | None = None,
    traffic: Path | None = None,
    cache: str | None = None,
    on_ready: "OnReady",
) -> Result:
    """Serve exactly this version until SIGTERM or SIGINT, and drain.

    Args:
        context: settings, registry and clock.
        ref: a registered version, or a file that is served as version 0.
        device: "auto", "cuda" or "cpu".
        host: address to listen on, instead of the configured one.
        port: 0 takes a free one.
        admin_port: of the second listener, for metrics and health; 0 takes a free one.
        traffic: folder of the traffic log, instead of the configured one.
        cache: "off", "memory" or "redis", instead of what is configured.
        on_ready: called once with the addresses, when the server takes requests.

    Raises:
        NotFoundError: no such version or file.
        UsageError: an address or a device that cannot be used.
        GateFailedError: the model does not pass its self-check.
    """
    from mlx_platform.serving.server import run

    settings = _settings(
        context, host=host, port=port, admin_port=admin_port, traffic=traffic, cache=cache
    )
    with (
        open_subject(context, ref) as subject,
        open_embedder(context, settings.semantic_cache, subject.name, device=device) as embedder,
    ):
        warnings = (*alias_warnings(context, ref), *subject.warnings)
        for warning in warnings:
            _logger.warning(warning)  # now, not only in the result of a server that runs for weeks
        model = open_model(context, subject, device=device, threads=settings.intra_op_threads)
        writer = _writer(context, settings, subject)
        metrics = run(model, settings, writer, embedder=embedder, on_ready=on_ready)
        return _result(subject, metrics, writer, warnings)


def _settings(context: Context, **overrides: Any) -> ServingSettings:
    traffic, cache = overrides.pop("traffic"), overrides.pop("cache")
    changes = {key: value for key, value in overrides.items() if value is not None}
    configured = context.settings.serving
    if cache is not None:
        changes["cache"] = changed(configured.cache, {"backend": cache}, source="--cache")
    if traffic is not None:
        changes["traffic"] = str(traffic.absolute())
    elif configured.traffic:
        changes["traffic"] = str(context.settings.path(configured.traffic))
    return changed(configured, changes, source="mlx serve")


def _writer(context: Context, settings: ServingSettings, subject: Subject) -> "TrafficWriter | None":
    if not settings.traffic:
        return None
    from mlx_platform.traffic.writer import TrafficWriter

    return TrafficWriter(
        Path(settings.traffic),
        model=subject.name,
        version=subject.number,
        queue_bytes=settings.traffic_queue_bytes,
        disk_bytes=settings.traffic_disk_bytes,
        sample=settings.traffic_sample,
        clock=context.clock,
    )


def _result(
    subject: Subject, metrics: "Metrics", writer: "TrafficWriter | None", warnings: tuple[str, ...]
) -> Result:
    requests = metrics.requests_by_status()
    log = _log_counts(writer)
    total = sum(requests.values())
    tables: list[Table] = []
    if requests:
        tables.append(Table("Requests", ("status", "requests"), _rows(requests), numeric=(1,)))
    if log:
        tables.append(Table("Traffic log", ("records", "count"), _rows(log), numeric=(1,)))
    if log and log["lost"]:
        warnings = (*warnings, f"{plural(log['lost'], 'record')} did not get logged.")
    return Result(
        command="serve",
        data={
            "name": subject.name,
            "version": subject.number,
            "digest": subject.package.digest,
            "requests": requests,
            "traffic": log,
        },
        report=Report(
            title=f"Served {subject.ref}",
            summary=f"{plural(total, 'request')} answered by {subject.ref}; stopped cleanly.",
            facts=(Fact("version", subject.ref), Fact("digest", subject.package.digest)),
            sections=tuple(tables),
        ),
        warnings=warnings,
    )


def _log_counts(writer: "TrafficWriter | None") -> dict[str, int]:
    """What became of the records; served = logged + lost + sampled out."""
    if writer is None:
        return {}
    counters = writer.counters
    return {
        "served": counters.served,
        "logged": counters.logged,
        "sampled_out": counters.sampled_out,
        "lost": sum(counters.dropped.values()) + counters.pending,
    }


def _rows(counts: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"{count:,}") for name, count in counts.items())
