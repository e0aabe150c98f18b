"""`mlx init`: the settings file and the registry."""

import json
import re

from mlx_platform.core.files import write_atomic
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.settings import FILE_NAME
from mlx_platform.workflows.context import Context

_TEMPLATE = """\
# Settings of mlx; every value here is the default unless you change it. `mlx --help` names the commands.

[registry]
{registry}
artifacts = {artifacts}

# The evidence a version needs before it may hold an alias.
[promotion.staging]
needs = []

[promotion.production]
needs = ["evaluation"]
"""


def initialize(context: Context) -> Result:
    """Write `mlx.toml` unless it is there, and create the registry unless it is there.

    Raises:
        UnavailableError: the registry cannot be created or reached.
        UsageError: the folder cannot be written.
    """
    settings = context.settings
    path = settings.folder / FILE_NAME
    with context.progress.stage("creating the registry"):
        created = context.catalog.create()
    wrote = not path.exists()
    warnings: tuple[str, ...] = ()
    if wrote:
        secret = bool(re.search(r"://[^/@]*:[^/@]*@", settings.registry.uri))
        uri = f"uri = {json.dumps(settings.registry.uri)}"
        if secret:
            uri = "# uri holds a password, so it stays in the environment: MLX_REGISTRY"
            warnings = ("The registry's URI holds a password and was not written down; set MLX_REGISTRY.",)
        artifacts = json.dumps(settings.registry.artifacts)
        write_atomic(path, _TEMPLATE.format(registry=uri, artifacts=artifacts))
    done = [
        *(["created the registry"] if created else []),
        *([f"wrote {FILE_NAME}"] if wrote else []),
    ]
    summary = " and ".join(done) if done else "everything was there already"
    return Result(
        command="init",
        data={
            "settings": str(path),
            "registry": context.catalog.shown,
            "created": created,
            "wrote_settings": wrote,
        },
        report=Report(
            title="init",
            summary=f"{summary[0].upper()}{summary[1:]}.",
            facts=(Fact("settings", str(path)), Fact("registry", context.catalog.shown)),
            next_steps=("mlx register NAME model.onnx", "mlx list"),
        ),
        warnings=warnings,
    )
