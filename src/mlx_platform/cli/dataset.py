"""`mlx dataset`: labels that came back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlx_platform.cli.command import Run, command, command_group

if TYPE_CHECKING:
    from mlx_platform.core.report import Result

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The dataset.")]
IncrementArgument = Annotated[
    str, typer.Argument(metavar="NAME[@DIGEST]", help="An increment; without a digest the newest.")
]


def add_commands(app: typer.Typer) -> None:
    """Add the group to the application."""
    group = command_group(
        app,
        "dataset",
        "Keep labels for the next training.",
        examples=("mlx dataset import reviews labelled.jsonl", "mlx dataset export reviews -o train.parquet"),
    )

    @command(
        group,
        "import",
        examples=(
            "mlx dataset import reviews labelled.jsonl",
            "mlx dataset import reviews export.json --sample review.jsonl",
        ),
    )
    def import_(
        run: Run,
        name: NameArgument,
        files: Annotated[
            list[Path],
            typer.Argument(metavar="FILE...", help="JSONL of a sample, CSV, or Label Studio's JSON export."),
        ],
        sample: Annotated[
            Path | None,
            typer.Option("--sample", metavar="FILE", help="The sample as JSONL that ids come from."),
        ] = None,
        label_column: Annotated[
            str, typer.Option("--label-column", metavar="COLUMN", help="Of a CSV.")
        ] = "label",
        keep_masked: Annotated[
            bool, typer.Option("--keep-masked", help="Also rows whose personal data were masked.")
        ] = False,
    ) -> "Result":
        """Take labels in as the next increment of a dataset."""
        from mlx_platform.workflows.dataset import add

        return add(
            run.context, name, files, sample=sample, label_column=label_column, keep_masked=keep_masked
        )

    @command(group, "list", examples=("mlx dataset list", "mlx dataset list reviews"))
    def list_(
        run: Run,
        name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this dataset.")] = None,
    ) -> "Result":
        """List datasets and their increments."""
        from mlx_platform.workflows.dataset import listing

        return listing(run.context, name)

    @command(group, "show", examples=("mlx dataset show reviews",))
    def show(run: Run, ref: IncrementArgument) -> "Result":
        """Tell where an increment comes from, and how its labels are distributed."""
        from mlx_platform.workflows.dataset import show as tell

        return tell(run.context, ref)

    @command(group, "export", examples=("mlx dataset export reviews -o train.parquet",))
    def export(
        run: Run,
        ref: IncrementArgument,
        output: Annotated[Path, typer.Option("-o", metavar="FILE", help="A Parquet file.")],
        increment_only: Annotated[
            bool, typer.Option("--increment-only", help="Without the increments before it.")
        ] = False,
    ) -> "Result":
        """Write labelled rows for training, with their weights."""
        from mlx_platform.workflows.dataset import export as write

        return write(run.context, ref, output, increment_only=increment_only)
