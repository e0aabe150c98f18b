"""How a server comes to take part in the rollouts of the alias that it follows."""

import logging
import os
import re
import secrets
import socket
import threading
from functools import partial

from mlx_platform.core.errors import MlxError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.settings import Settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.serving.following.followed import Followed
from mlx_platform.serving.following.follower import Follower
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.rollout.lookbook import Lookbook, looks_folder
from mlx_platform.serving.rollout.notice import tell_beside
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.rollout.office import Office
from mlx_platform.serving.rollout.participant import Participant
from mlx_platform.serving.rollout.witness import record_beside
from mlx_platform.serving.router import Router

_logger = logging.getLogger(__name__)


def take_part(followed: Followed, router: Router, follower: Follower, arms: Arms) -> Participant:
    """Make a server that follows an alias take part in its rollouts."""
    settings = followed.settings
    host = re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:48] or "server"
    me = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
    marks = Marks(settings.path(settings.cache.dir) / "rollouts" / "loaded", me)
    office = Office(
        Catalog(settings),
        followed.name,
        followed.alias,
        me=me,
        marks=marks,
        book=Lookbook(looks_folder(settings)),
        witness=partial(_testify, settings),
        tell=partial(tell_beside, settings, followed.name),
    )
    return Participant(router, follower, arms, office, marks)


def _testify(settings: Settings, ref: str, evidence: Evidence) -> None:
    """Record evidence beside everything else."""
    threading.Thread(
        target=_record, args=(settings, ref, evidence), name="mlx-rollout-evidence", daemon=True
    ).start()


def _record(settings: Settings, ref: str, evidence: Evidence) -> None:
    try:
        record_beside(settings, ref, evidence)
    except MlxError as error:
        _logger.warning("%s", error.message)
