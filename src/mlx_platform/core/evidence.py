"""Evidence: what was found out about a package digest, kept with the version and read by promotion."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict

EVIDENCE_SCHEMA = "mlx.evidence/v1"


@frozen
class Evidence:
    """A finding of one `kind` (evaluation, quantization, consistency ...) about one package digest.

    `data_fingerprint` identifies the rows it was found on, `parameters` how, `numbers` what (JSON-ready).
    """

    kind: str
    digest: str
    verdict: Verdict
    created: datetime
    data_fingerprint: str
    parameters: Mapping[str, Any]
    numbers: Mapping[str, Any]
    tools: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        return {
            "schema": EVIDENCE_SCHEMA,
            "kind": self.kind,
            "digest": self.digest,
            "verdict": str(self.verdict),
            "created": rfc3339(self.created),
            "data_fingerprint": self.data_fingerprint,
            "parameters": dict(self.parameters),
            "numbers": dict(self.numbers),
            "tools": dict(self.tools),
        }

    @property
    def id(self) -> str:
        """The first 16 hex digits of the document's SHA-256."""
        document = orjson.dumps(self.document(), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(document).hexdigest()[:16]
