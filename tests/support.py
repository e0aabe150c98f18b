"""Types that tests share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind: its exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.out)
        return document

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.document["data"]
        return data


RunCommand = Callable[..., Outcome]
