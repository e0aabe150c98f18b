"""Write docs/cli.md from the commands' own help, or check that it is current."""

import os
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Command reference

Written by `make docs` from the commands' own help; do not edit by hand.
"""


def main(arguments: list[str]) -> int:
    # Help is wrapped to the terminal's width; a fixed one makes the page the same everywhere.
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    import typer

    from mlx_platform.cli.main import create_app

    group: Any = typer.main.get_command(create_app())
    sections = [HEAD, "## mlx\n", _block(group.make_context("mlx", [], resilient_parsing=True).get_help())]
    for name, command in group.commands.items():
        context = command.make_context(f"mlx {name}", [], resilient_parsing=True)
        sections += [f"## mlx {name}\n", _block(context.get_help())]
    page = "\n".join(sections)
    if "--check" in arguments:
        if PAGE.read_text() != page:
            sys.stderr.write("docs/cli.md is out of date: run make docs\n")
            return 1
        return 0
    PAGE.write_text(page)
    return 0


def _block(text: str) -> str:
    return "```text\n" + "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n```\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
