"""Texts that are on every machine with Python: what programs say of themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

_SHORTEST, _LONGEST = 40, 600  # characters of a text


def docstrings_of(path: Path) -> Iterator[str]:
    """The starts of the docstrings of a module's file; none of one that is not Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = (ast.get_docstring(node) or "")[:_LONGEST]
            if len(text) >= _SHORTEST:
                yield text
