"""Servers that must start without the registry: with what their reference last meant."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.text import printable
from mlx_platform.registry.last_known import LastKnown
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import Subject, alias_warnings, open_subject


@contextmanager
def open_last_known(context: Context, text: str) -> Iterator[tuple[Subject, tuple[str, ...]]]:
    """Resolve a reference like `open_subject`, or recall what it meant when the registry is away.

    Yields:
        The subject, and what to say of it.

    Raises:
        MlxError: see `open_subject`; UnavailableError only where nothing is known, or its bytes are not here.
    """
    known = LastKnown(context.settings, context.catalog.shown)
    with ExitStack() as stack:
        try:
            subject = stack.enter_context(open_subject(context, text))
            warnings = (*alias_warnings(context, text), *subject.warnings)
        except UnavailableError as error:
            recalled = known.recall(text)
            if recalled is None:
                raise
            version, package, since = recalled
            subject = Subject(version.name, version, package, text)
            problem = f"The registry cannot be asked ({error.message.rstrip('.')})"
            warnings = (f"{problem}: {printable(text, 200)} is {subject.ref}, as it was at {since}.",)
        else:
            opened = subject.version
            if opened is not None and opened.sealed:
                known.keep(text, opened.name, opened.number, opened.digest, opened.size, context.clock())
        yield subject, warnings
