"""`mlx serve`: one version over HTTP, until somebody stops it."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tables import changed
from mlx_platform.core.text import plural, printable
from mlx_platform.registry.ref import AliasRef, NameRef, VersionRef, parse_ref
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.embedding import open_embedder
from mlx_platform.workflows.last_known import open_last_known
from mlx_platform.workflows.subject import Subject, open_model, open_subject

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model
    from mlx_platform.serving.following.followed import Followed
    from mlx_platform.serving.processes.supervisor import Totals
    from mlx_platform.serving.server import OnReady

_logger = logging.getLogger(__name__)


def serve(
    context: Context,
    ref: str,
    *,
    device: str = "auto",
    host: str | None = None,
    port: int | None = None,
    admin_port: int | None = None,
    grpc_port: int | None = None,
    devices: str | None = None,
    processes: int | None = None,
    warmup: Path | None = None,
    traffic: Path | None = None,
    cache: str | None = None,
    max_batch_size: str | None = None,
    follow: bool = False,
    on_ready: "OnReady",
) -> Result:
    """Serve exactly this version, or whatever an alias means, until SIGTERM or SIGINT, and drain.

    Args:
        context: settings, registry and clock.
        ref: a registered version, or a file that is served as version 0.
        device: "auto", "cuda", "tensorrt", "cpu", or a GPU by its number such as "cuda:1".
        host: address to listen on, instead of the configured one.
        port: 0 takes a free one.
        admin_port: of the second listener, for metrics and health; 0 takes a free one.
        grpc_port: of the listener for gRPC; 0 takes a free one, -1 leaves it out.
        devices: for a process on each, separated by commas.
        processes: how many processes to serve with on one device; 0 for none beside this one.
        warmup: JSONL of rows that are answered before the server is ready.
        traffic: folder of the traffic log, instead of the configured one.
        cache: "off", "memory" or "redis", instead of what is configured.
        max_batch_size: rows of a run, or "auto", instead of what is configured.
        follow: switch to another version whenever the alias that `ref` names moves.
        on_ready: called once with the addresses, when the server takes requests.

    Raises:
        NotFoundError: no such version or file.
        UsageError: an address or a device that cannot be used, or no alias to follow.
        GateFailedError: the model does not pass its self-check.
    """
    from mlx_platform.serving.assembly import open_log
    from mlx_platform.serving.following.desk import Desk
    from mlx_platform.serving.server import run

    alias = _alias_of(ref) if follow else None
    settings = _settings(
        context,
        host=host,
        port=port,
        admin_port=admin_port,
        grpc_port=grpc_port,
        devices=devices,
        processes=processes,
        warmup=warmup,
        traffic=traffic,
        cache=cache,
        max_batch_size=max_batch_size,
    )
    with (
        open_last_known(context, ref) as (subject, warnings),
        open_embedder(context, settings.semantic_cache, subject.name, device=device) as embedder,
        _open_light(context, settings) as light,
    ):
        for warning in warnings:
            _logger.warning(warning)  # now, not only in the result of a server that runs for weeks
        followed = _followed(context, alias, settings)
        shown = printable(ref, 200) if follow else subject.ref
        if settings.processes or settings.devices:
            totals = _serve_in_processes(settings, device, subject, embedder, light, followed, on_ready)
            told = (*warnings, *_missing(totals.silent))
            return _result(subject, totals.requests, totals.traffic, told, shown)
        model = _open(context, subject, device, settings, follow=follow)
        outcome = run(
            model,
            settings,
            open_log(settings, subject.name, subject.number, context.clock),
            embedder=embedder,
            light=light,
            desk=Desk(followed, device, context.clock) if followed is not None else None,
            on_ready=on_ready,
        )
        return _result(subject, outcome.requests, outcome.traffic, warnings, shown)


def _alias_of(ref: str) -> AliasRef:
    """The alias that a reference names.

    Raises:
        UsageError: it names something that never moves.
    """
    parsed = parse_ref(ref)
    if not isinstance(parsed, AliasRef) or parsed.back:
        name = printable(parsed.name, 128) if isinstance(parsed, AliasRef | VersionRef | NameRef) else "NAME"
        raise UsageError(
            f"{printable(ref, 200)!r} cannot be followed: it is no alias of a model.",
            hint=f"Only an alias moves: mlx serve {name}@production --follow",
        )
    return parsed


def _followed(context: Context, alias: AliasRef | None, settings: ServingSettings) -> "Followed | None":
    from mlx_platform.serving.following.followed import Followed

    if alias is None:
        return None
    return Followed(alias.name, alias.alias, replace(context.settings, serving=settings))


def _open(
    context: Context, subject: Subject, device: str, settings: ServingSettings, *, follow: bool
) -> "Model":
    """Load the model within its budget of memory, and say when it is not on the device that was meant."""
    from mlx_platform.serving.devices.plan import session_memory
    from mlx_platform.serving.following.desk import VERSIONS

    versions = VERSIONS if follow else 1
    memory = session_memory(subject.package, device, settings, versions=versions)
    model = open_model(context, subject, device=device, threads=settings.intra_op_threads, memory=memory)
    tried = model.session.fell_back
    if tried:
        _logger.warning("%s was tried and did not come up: the model runs on the CPU.", tried)
    return model


def _serve_in_processes(
    settings: ServingSettings,
    device: str,
    subject: Subject,
    embedder: "Model | None",
    light: "Model | None",
    followed: "Followed | None",
    on_ready: "OnReady",
) -> "Totals":
    """Serve with one worker per device, or as many as were asked for on one; what they counted."""
    from mlx_platform.inference.device import parse_device
    from mlx_platform.serving.access import Access
    from mlx_platform.serving.processes.supervisor import supervise
    from mlx_platform.serving.processes.worker import Loaded, Plan
    from mlx_platform.serving.server import Addresses

    def loaded(model: "Model | None") -> Loaded | None:
        return Loaded(str(model.package.root), model.name, model.version) if model else None

    devices = tuple(str(parse_device(text)) for text in settings.devices) or (device,) * settings.processes
    settings = replace(settings, processes=len(devices))
    plan = Plan(
        package=Loaded(str(subject.package.root), subject.name, subject.number),
        device=device,
        settings=settings,
        light=loaded(light),
        embedder=loaded(embedder),
        followed=followed,
    )
    access = Access.of(settings, os.environ)
    return supervise(plan, devices, access, on_ready=lambda addresses: on_ready(Addresses(**addresses)))


@contextmanager
def _open_light(context: Context, settings: ServingSettings) -> "Iterator[Model | None]":
    """The version that answers when no device works, on the device that is always there."""
    if not settings.degrade.fallback:
        yield None
        return
    with open_subject(context, settings.degrade.fallback) as subject:
        yield open_model(context, subject, device="cpu", threads=settings.intra_op_threads)


def _settings(context: Context, **overrides: Any) -> ServingSettings:
    traffic, cache, devices, warmup = (
        overrides.pop(key) for key in ("traffic", "cache", "devices", "warmup")
    )
    changes = {key: value for key, value in overrides.items() if value is not None}
    configured = context.settings.serving
    if cache is not None:
        changes["cache"] = changed(configured.cache, {"backend": cache}, source="--cache")
    if warmup is not None:
        changes["warmup"] = str(warmup.absolute())
    elif configured.warmup:
        changes["warmup"] = str(context.settings.path(configured.warmup))
    if devices is not None:
        changes["devices"] = [device.strip() for device in devices.split(",") if device.strip()]
    if traffic is not None:
        changes["traffic"] = str(traffic.absolute())
    elif configured.traffic:
        changes["traffic"] = str(context.settings.path(configured.traffic))
    return changed(configured, changes, source="mlx serve")


def _missing(silent: int) -> tuple[str, ...]:
    """What to say of so many workers that ended before they could tell what they counted."""
    they = "it" if silent == 1 else "they"
    return (
        (f"{plural(silent, 'worker')} ended early: what {they} counted is not in these numbers.",)
        if silent
        else ()
    )


def _result(
    subject: Subject,
    requests: Mapping[str, int],
    log: Mapping[str, int],
    warnings: tuple[str, ...],
    shown: str,
) -> Result:
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
            "requests": dict(requests),
            "traffic": dict(log),
        },
        report=Report(
            title=f"Served {shown}",
            summary=f"{plural(total, 'request')} answered by {shown}; stopped cleanly.",
            facts=(
                Fact("version" if shown == subject.ref else "version at the start", subject.ref),
                Fact("digest", subject.package.digest),
            ),
            sections=tuple(tables),
        ),
        warnings=warnings,
    )


def _rows(counts: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"{count:,}") for name, count in counts.items())
