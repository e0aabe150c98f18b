"""What every workflow needs: settings, the registry, a clock, a watcher, and who is asking."""

import os
import pwd
from collections.abc import Mapping

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.core.progress import Progress, Silent
from mlx_platform.core.settings import Settings
from mlx_platform.core.values import frozen
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.journal import check_actor


@frozen
class Context:
    """Passed to every workflow; `actor` is recorded with each move of an alias."""

    settings: Settings
    catalog: Catalog
    clock: Clock
    progress: Progress
    actor: str


def make_context(
    settings: Settings, *, progress: Progress | None = None, clock: Clock = system_clock
) -> Context:
    """The context of one command, or of one notebook.

    Raises:
        UsageError: the actor's name cannot be kept.
    """
    actor = settings.actor or default_actor(os.environ)
    check_actor(actor)
    return Context(
        settings=settings,
        catalog=Catalog(settings, clock),
        clock=clock,
        progress=progress or Silent(),
        actor=actor,
    )


def default_actor(environment: Mapping[str, str]) -> str:
    """Who acts: the pipeline's user where a CI system names one, else the user of this machine."""
    for variable in ("GITHUB_ACTOR", "GITLAB_USER_LOGIN", "BUILD_USER_ID"):
        if environment.get(variable):
            return environment[variable]
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if environment.get(variable):
            return environment[variable]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"
