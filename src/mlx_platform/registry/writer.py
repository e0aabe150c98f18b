"""What the ledger and the catalog ask of a registry for writing rows; bytes go through the store."""

from collections.abc import Collection, Mapping
from typing import Protocol


class Writer(Protocol):
    """Each call is one durable write or a few that may be repeated: whoever dies within one calls it again.

    All of them raise UnavailableError for a registry that stays locked, cannot be written or cannot be
    reached.
    """

    def ensure_model(self, name: str, *, tags: Mapping[str, str], description: str) -> None:
        """Create a registered model unless it is there; one that is there is left as it is."""
        ...

    def create_version(
        self, name: str, source: str, *, tags: Mapping[str, str], description: str = ""
    ) -> int:
        """Append a version with its tags in one step.

        Returns:
            Its number, which the registry gives out once and in order.

        Raises:
            NotFoundError: there is no such model.
        """
        ...

    def set_alias(self, name: str, alias: str, number: int | None) -> None:
        """Point an alias to a version, or take it away; whoever writes last wins.

        Raises:
            NotFoundError: there is no such model or version.
        """
        ...

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        """Write tags of a version over what they were.

        Raises:
            NotFoundError: there is no such version.
        """
        ...

    def set_model_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Write tags of a registered model over what they were.

        Raises:
            NotFoundError: there is no such model.
        """
        ...

    def delete_model_tags(self, name: str, keys: Collection[str]) -> None:
        """Take tags of a registered model away; one that is not there is as good.

        Raises:
            NotFoundError: there is no such model.
        """
        ...

    def delete_version(self, name: str, number: int) -> None:
        """Delete a version as MLflow does: its row stays, marked, so that its number is not given out again.

        Raises:
            NotFoundError: there is no such version.
        """
        ...
