"""On which line of a TOML or YAML text each key stands, so that a message can point at it.

`tomllib` tells values only. The scanner here reads text that `tomllib` has already accepted, so it finds
places and checks nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str | int, ...]
Lines = Mapping[Path, int]
"""From the way to a value, such as `("gates", 0, "min")`, to its line, from 1."""

NO_LINES: Lines = {}


def toml_lines(text: str) -> Lines:
    """The lines of the keys, tables and list entries of a valid TOML document."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self.found: dict[Path, int] = {}

    def document(self) -> None:
        table: Path = ()
        counts: dict[Path, int] = {}
        while self._skip():
            line = self._line
            if self._text.startswith("[[", self._at):
                name = _placed(self._header("[[", "]]"), counts)
                counts[name] = counts.get(name, -1) + 1
                table = (*name, counts[name])
                self._note(table, line)
            elif self._peek() == "[":
                table = _placed(self._header("[", "]"), counts)
                self._note(table, line)
            else:
                self._pair(table)

    def _note(self, path: Path, line: int) -> None:
        """A value begins here, and so do those around it that did not before."""
        for end in range(1, len(path) + 1):
            self.found.setdefault(path[:end], line)

    def _pair(self, table: Path) -> None:
        line = self._line
        keys = self._key()
        self._note((*table, *keys), line)
        self._skip()
        self._step()  # the equals sign
        self._value((*table, *keys))

    def _value(self, path: Path) -> None:
        self._skip()
        if self._peek() == "[":
            for number in self._entries("]"):
                self.found[*path, number] = self._line
                self._value((*path, number))
        elif self._peek() == "{":
            for _number in self._entries("}"):
                self._pair(path)
        elif self._peek() in "\"'":
            self._string()
        else:
            while self._peek() not in ",]}#\n":
                self._step()

    def _entries(self, end: str) -> Iterator[int]:
        self._step()
        number = 0
        while self._skip() and self._peek() != end:
            yield number
            number += 1
            if self._skip() and self._peek() == ",":
                self._step()
        self._step()

    def _header(self, start: str, end: str) -> Path:
        self._step(len(start))
        name = self._key()
        self._skip()
        self._step(len(end))
        return name

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip()
            parts.append(self._string() if self._peek() in "\"'" else self._bare())
            self._skip()
            if self._peek() != ".":
                return tuple(parts)
            self._step()

    def _bare(self) -> str:
        start = self._at
        while self._peek() not in " \t.=]\n":
            self._step()
        return self._text[start : self._at]

    def _string(self) -> str:
        quote = self._peek()
        fence = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._step(len(fence))
        start = self._at
        while self._at < len(self._text) and not self._text.startswith(fence, self._at):
            self._step(2 if quote == '"' and self._peek() == "\\" else 1)
        content = self._text[start : self._at]
        self._step(len(fence))
        while len(fence) == 3 and self._peek() == quote:
            self._step()  # up to two quotes may stand before the closing three
        return content

    def _skip(self) -> bool:
        """Step over blanks, newlines and comments; whether anything follows."""
        while self._at < len(self._text):
            if self._peek() == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._peek() in " \t\r\n":
                self._step()
            else:
                return True
        return False

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else "\n"

    def _step(self, count: int = 1) -> None:
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count


def _placed(name: Path, counts: Mapping[Path, int]) -> Path:
    """A header's name with the number of the latest entry behind each list of tables above it."""
    path: Path = ()
    for place, part in enumerate(name):
        path = (*path, part)
        if place < len(name) - 1 and path in counts:
            path = (*path, counts[path])
    return path


def yaml_lines(root: Any) -> Lines:
    """The lines of the keys and list entries below a node that `yaml.compose` gave."""
    found: dict[Path, int] = {}

    def walk(node: Any, path: Path) -> None:
        if node is None or isinstance(node.value, str):
            return
        for number, entry in enumerate(node.value):
            key, value = entry if isinstance(entry, tuple) else (None, entry)
            inner = (*path, number if key is None else str(key.value))
            found[inner] = (value if key is None else key).start_mark.line + 1
            walk(value, inner)

    walk(root, ())
    return found
