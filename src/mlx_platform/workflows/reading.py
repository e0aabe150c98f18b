"""How a traffic log is read for a version: its format, its zone, and what its bodies mean."""

from collections.abc import Sequence

from mlx_platform.core.span import time_zone
from mlx_platform.traffic.readers.opening import Reading, check_format
from mlx_platform.traffic.readers.signature import Signature
from mlx_platform.workflows.subject import Subject


def make_reading(
    subject: Subject | None,
    names: Sequence[str] = (),
    *,
    log_format: str | None = None,
    assume_tz: str | None = None,
) -> Reading:
    """What a reader of logs needs to know.

    Args:
        subject: whose traffic a log of another platform is taken to be.
        names: of the columns of rows without names, where there is no version to tell them.
        log_format: what was asked for; None finds it out.
        assume_tz: the zone of times that name none, such as `Europe/Berlin`.

    Raises:
        UsageError: no such format, or no such zone.
    """
    if log_format is not None:
        check_format(log_format)
    zone = time_zone(assume_tz) if assume_tz else None
    if subject is None:
        return Reading(log_format, zone, Signature(columns=tuple(names)))
    spec = subject.package.spec
    signature = Signature(
        columns=spec.columns,
        inputs=spec.inputs,
        outputs=spec.outputs,
        task=spec.task,
        labels=spec.labels,
        model=subject.name,
        version=subject.number,
        digest=subject.package.digest,
    )
    return Reading(log_format, zone, signature)
