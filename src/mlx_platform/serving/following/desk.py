"""Where a server asks which version to serve, and gets it from. Everything here blocks."""

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.last_known import LastKnown
from mlx_platform.registry.ref import VersionRef
from mlx_platform.registry.sight import Sight
from mlx_platform.serving.assembly import open_log
from mlx_platform.serving.devices.plan import session_memory
from mlx_platform.serving.following.compatibility import differences
from mlx_platform.serving.following.followed import Followed
from mlx_platform.traffic.writer import TrafficWriter

VERSIONS = 2
"""So many versions are in memory at a time, each with as large a share of what may be used."""


class SignatureError(UsageError):
    """The clients of the version that is served could not go on with this one."""

    code = "signature"


class NoRoomError(UnavailableError):
    """There is no memory for a second version."""

    code = "no_room"


class Desk:
    """Looks and gets; each of the two may be done on a thread of its own at the same time.

    Args:
        followed: the alias.
        device: what versions are loaded on.
        clock: gives the hours of the traffic log.
    """

    def __init__(self, followed: Followed, device: str, clock: Clock = system_clock) -> None:
        self.followed = followed
        self.name = followed.name
        self.alias = followed.alias
        self.device = device
        settings = followed.settings
        kind = parse_address(settings.registry.uri, settings.folder).kind
        self.interval = 0.5 if kind == "sqlite" else 1.0
        """Seconds from one look to the next."""
        self._clock = clock
        self._lookout = Catalog(settings, clock)
        self._store = Catalog(settings, clock)
        self._last_known = LastKnown(settings, self._store.shown)
        self._journal_end = 0

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.alias}"

    def look(self) -> Sight:
        """The model as it stands in the registry.

        Raises:
            MlxError: it cannot be seen, or it is another registry that stands there now.
        """
        sight = self._lookout.sight(self.name)
        if sight.journal_end < self._journal_end:
            # An empty database in the place of one that is away must not look like "nobody rolls out".
            raise UnavailableError(
                f"The journal of {self.name} has become shorter: this is not the registry that was followed.",
                hint="Bring that one back, or start the server anew to follow this one.",
            )
        self._journal_end = sight.journal_end
        return sight

    def obtain(self, number: int, before: ModelSpec) -> Model:
        """Get a version, verify it, and load it.

        Args:
            number: of the version.
            before: what the version that is served takes and gives.

        Raises:
            NotFoundError: there is no such version.
            SignatureError: it takes or gives something else.
            NoRoomError: it does not fit beside the other.
            IntegrityError: bytes that do not match their digest.
            UnavailableError: the registry or the device cannot be used.
            UsageError: no network that can be loaded.
        """
        version = self._store.resolve(VersionRef(self.name, number))
        package = self._store.fetch(version)
        found = differences(before, package.spec)
        if found:
            raise SignatureError(
                f"{version.ref} cannot take the place of the version that is served: {'; '.join(found)}.",
                hint="Its clients would have to change: serve it beside the old one, and let them move.",
            )
        serving = self.followed.settings.serving
        try:
            memory = session_memory(package, self.device, serving, versions=VERSIONS)
        except UnavailableError as error:
            raise NoRoomError(error.message, hint=error.hint) from error
        return Model.load(
            package,
            name=self.name,
            version=str(number),
            device=self.device,
            threads=serving.intra_op_threads,
            memory=memory,
        )

    def log(self, number: int) -> TrafficWriter | None:
        """The traffic log of a version."""
        return open_log(self.followed.settings.serving, self.name, str(number), self._clock)

    def remember(self, model: Model) -> None:
        """Note which version the alias means that could be served, for a start without the registry."""
        note = (model.name, int(model.version), model.digest, model.package.size)
        self._last_known.keep(self.reference, *note, self._clock())

    def recall(self) -> tuple[str, Package] | None:
        """The number and the package of the version that was last noted; None unless they are here."""
        found = self._last_known.recall(self.reference)
        return (str(found[0].number), found[1]) if found is not None else None
