"""References: the one way to name a version, and the grammar of names and aliases.

NAME@ALIAS   NAME@ALIAS~N (the N-th holder before)   NAME/12   NAME:12   NAME-YYYYMMDD-NNN (a label)
models:/NAME/12   models:/NAME@ALIAS   a folder or a file ending in .onnx (not registered)
"""

import re

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ALIAS_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,62}")
JOURNAL_PREFIX = "mlx.journal."
"""Names of the models that keep the journal; no user's model may start like this."""

_LABEL_PATTERN = re.compile(rf"({NAME_PATTERN.pattern})-([0-9]{{8}})-([0-9]{{3,9}})")
_NUMBER_PATTERN = re.compile(r"[0-9]{1,9}")
_BACK_PATTERN = re.compile(r"[0-9]{1,4}")
_RESERVED_ALIAS = re.compile(r"latest|v[0-9]+")
REGISTERED = (
    "Write NAME@ALIAS, NAME@ALIAS~1 (the holder before), NAME/NUMBER, or a label as NAME-20260308-001."
)
"""The grammar of references to registered versions, for hints."""
GRAMMAR = REGISTERED.replace(", or a label", ", a label").rstrip(".") + ", or the path of a file."


@frozen
class AliasRef:
    """What an alias points to, or pointed to `back` holders before."""

    name: str
    alias: str
    back: int = 0


@frozen
class VersionRef:
    name: str
    number: int


@frozen
class LabelRef:
    """A word shaped like a label; a model may still have exactly this name."""

    text: str
    name: str
    day: str
    number: int


@frozen
class NameRef:
    """A model's name alone, which names no version."""

    name: str


@frozen
class PathRef:
    """A package folder or an `.onnx` file that nobody has registered."""

    path: str


Ref = AliasRef | VersionRef | LabelRef | NameRef | PathRef


def is_name(text: str) -> bool:
    """Whether the text may name a user's model; what the registry returns is asked as well."""
    return bool(NAME_PATTERN.fullmatch(text)) and not text.startswith(JOURNAL_PREFIX)


def is_alias(text: str) -> bool:
    return bool(ALIAS_PATTERN.fullmatch(text)) and not _RESERVED_ALIAS.fullmatch(text)


def check_name(name: str) -> str:
    """Return the name when a model may have it.

    Raises:
        UsageError: says which characters a name has.
    """
    if name.endswith(".onnx"):
        raise UsageError(
            f"{printable(name, 200)!r} looks like a file, not like a model's name.",
            hint="The name comes first: mlx register NAME model.onnx",
        )
    if name.startswith(JOURNAL_PREFIX):
        raise UsageError(f"Names that start with {JOURNAL_PREFIX!r} are kept for the journal.")
    if not is_name(name):
        raise UsageError(
            f"'{printable(name, 200)}' is no model name.",
            hint="Up to 128 letters, digits, dots, dashes and underscores; the first is a letter or digit.",
        )
    return name


def check_new_name(name: str) -> str:
    """Return the name when a model that is not there yet may have it: no label, which names one version.

    Raises:
        UsageError: it looks like the label of a version.
    """
    if label := _LABEL_PATTERN.fullmatch(check_name(name)):
        raise UsageError(
            f"{printable(name, 200)!r} looks like the label of a version, not like a model's name.",
            hint=f"Another version of {label[1]} is registered with: mlx register {label[1]} SOURCE",
        )
    return name


def check_alias(alias: str) -> str:
    """Return the alias when a version may hold it.

    Raises:
        UsageError: says which characters an alias has, or that the word is taken.
    """
    if _RESERVED_ALIAS.fullmatch(alias.lower()):
        raise UsageError(
            f"{printable(alias)!r} is no alias: it would move by itself, or look like a number.",
            hint="Aliases are moved on purpose, such as staging and production.",
        )
    if not is_alias(alias):
        raise UsageError(
            f"{printable(alias, 200)!r} is no alias.",
            hint="An alias has up to 63 lower-case letters, digits, dashes and underscores; a letter first.",
        )
    return alias


def parse_ref(text: str) -> Ref:
    """Read a reference; whether it names something that exists is for the catalog to say.

    Raises:
        UsageError: the text is no reference at all.
    """
    if text.startswith("models:/"):
        ref = _parse_registered(text.removeprefix("models:/"), text)
        if isinstance(ref, NameRef):
            raise UsageError(f"{printable(text)!r} names no version.", hint=GRAMMAR)
        return ref
    if _looks_like_path(text):
        return PathRef(text)
    return _parse_registered(text, text)


def _looks_like_path(text: str) -> bool:
    if text.endswith((".onnx", "/")) or text.startswith(("/", "./", "../", "~")) or text in {".", ".."}:
        return True
    head, _, tail = text.partition("/")
    # NAME/12 is a version; any other slash without an alias sign can only be a path.
    version = NAME_PATTERN.fullmatch(head) and tail.isascii() and tail.isdigit()
    return bool(tail) and "@" not in text and not version


def _parse_registered(text: str, whole: str) -> Ref:
    if "@" in text:
        return _parse_alias(text, whole)
    for separator in "/:":
        name, found, number = text.partition(separator)
        if found:
            if not _NUMBER_PATTERN.fullmatch(number) or int(number) == 0:
                raise UsageError(f"{printable(whole, 200)!r} has no version number.", hint=GRAMMAR)
            return VersionRef(check_name(name), int(number))
    if label := _LABEL_PATTERN.fullmatch(text):
        return LabelRef(text, label[1], label[2], int(label[3]))
    return NameRef(check_name(text))


def _parse_alias(text: str, whole: str) -> AliasRef:
    name, _, alias = text.partition("@")
    alias, tilde, back = alias.partition("~")
    if tilde and not _BACK_PATTERN.fullmatch(back):
        raise UsageError(f"{printable(whole, 200)!r} has no number after '~'.", hint=GRAMMAR)
    return AliasRef(check_name(name), check_alias(alias), int(back) if tilde else 0)
