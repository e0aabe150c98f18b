"""What an online evaluation is asked for."""

from pathlib import Path

from mlx_platform.core.values import frozen


@frozen
class Asked:
    """What is asked about live traffic.

    Attributes:
        ref: a version, or an alias: then each version that held it in the span is measured by itself.
        traffic: a traffic log, ours or another platform's.
        labels: a file; None reads the feedback beside the log.
        label: the outcome or column that is the truth.
        since: the first moment, RFC 3339 or an age.
        until: the moment after the last.
        every: the length of the windows.
        zone: on whose calendar they are cut.
        margin: the tolerated difference from offline, such as `2pp`; empty takes the usual one.
        metrics: those that may not differ; () takes the task's own.
        slices: columns whose slices are shown, such as `lang` or `lang,device`: inputs, or replica, arm,
            endpoint, hour.
        patience: labels that come so long after the answer do not count; None waits for ever.
        gates: a gate file.
        gate_expressions: such as `accuracy>=0.9`.
        positive: of two classes, what precision is about.
        log_format: of the traffic log; None finds it out.
        assume_tz: the zone of times in the log that name none.
    """

    ref: str
    traffic: Path
    labels: Path | None = None
    label: str = "label"
    since: str | None = None
    until: str | None = None
    every: str = "1d"
    zone: str = "UTC"
    margin: str = ""
    metrics: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    patience: str | None = None
    gates: Path | None = None
    gate_expressions: tuple[str, ...] = ()
    positive: str = ""
    log_format: str | None = None
    assume_tz: str | None = None
