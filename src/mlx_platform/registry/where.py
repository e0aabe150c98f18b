"""The language of `--where`: comparisons of a version's fields, joined by `and`, `or`, `not`.

    metrics.f1 >= 0.9 and params.lr < 0.1 or not (dataset = 2026-11 or archived)

    expression  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = "not" negation | "(" expression ")" | condition
    condition   = FIELD | FIELD OPERATOR VALUE | FIELD ["not"] "in" "(" VALUE {"," VALUE} ")"
    OPERATOR    = "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "contains" | "startswith"

A field alone asks whether the version has it, and of a yes-or-no field whether it is yes. A comparison with
a field that a version does not have is neither true nor false, whatever stands around it: `not` does not turn
it into a match (Kleene's three values). There are no calls, no arithmetic and no patterns, so nothing can run
away.
"""

import re
from datetime import datetime
from typing import Protocol

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.comparison import OPERATORS, Test, operators_of, test_of
from mlx_platform.registry.fields import Field, Known, parse_field

LENGTH_CAP = 4000  # characters of an expression
DEPTH_CAP = 50  # parentheses and `not` inside one another
_EXCERPT = 100  # characters shown around an error

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<word>(?:[\w./:@%+-]|`[^`]*`|(?<=\.)(?:"[^"]*"|'[^']*'))+)
    | (?P<quoted>"[^"]*"|'[^']*')
    | (?P<sign>==|!=|<=|>=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_KEYWORDS = {"and", "or", "not", "in", "contains", "startswith"}


class Condition(Protocol):
    """Anything that is true, false or unknown (None) of a version."""

    def holds(self, known: Known) -> bool | None: ...


@frozen
class Where:
    """A parsed expression and the fields that it names."""

    text: str
    condition: Condition
    fields: tuple[Field, ...]

    def matches(self, known: Known) -> bool:
        """Whether the expression is true; what is unknown does not match."""
        return self.condition.holds(known) is True

    def names(self, *roots: str) -> bool:
        """Whether one of these fields is asked about."""
        return any(field.root in roots for field in self.fields)


def parse_where(text: str, *, now: datetime) -> Where:
    """Read an expression.

    Args:
        text: the expression.
        now: what ages such as `7d` are counted back from.

    Raises:
        UsageError: says where it stops making sense, and what was expected there.
    """
    if len(text) > LENGTH_CAP:
        raise UsageError(f"The expression has more than {LENGTH_CAP:,} characters.")
    return _Parser(text, now).parse()


@frozen
class _Any:
    parts: tuple[Condition, ...]

    def holds(self, known: Known) -> bool | None:
        values = [part.holds(known) for part in self.parts]
        return True if True in values else None if None in values else False


@frozen
class _All:
    parts: tuple[Condition, ...]

    def holds(self, known: Known) -> bool | None:
        values = [part.holds(known) for part in self.parts]
        return False if False in values else None if None in values else True


@frozen
class _Not:
    part: Condition

    def holds(self, known: Known) -> bool | None:
        value = self.part.holds(known)
        return None if value is None else not value


@frozen
class _Present:
    field: Field

    def holds(self, known: Known) -> bool | None:
        if known.doubtful(self.field):
            return None
        value = known.value(self.field)
        return value is not None and value is not False and value != ()


@frozen
class _Comparison:
    field: Field
    test: Test

    def holds(self, known: Known) -> bool | None:
        value = known.value(self.field)
        return None if value is None else self.test(value)


@frozen
class _Token:
    kind: str  # word, quoted, sign, keyword, end
    text: str
    start: int


class _Parser:
    def __init__(self, text: str, now: datetime) -> None:
        self._text = text
        self._now = now
        self._tokens = _tokens(text)
        self._place = 0
        self._depth = 0
        self._fields: list[Field] = []

    def parse(self) -> Where:
        condition = self._any()
        if self._here.kind != "end":
            raise self._expected("an operator, and, or, or the end")
        return Where(self._text, condition, tuple(self._fields))

    @property
    def _here(self) -> _Token:
        return self._tokens[self._place]

    def _take(self, *texts: str) -> _Token | None:
        token = self._here
        if token.kind in {"keyword", "sign"} and token.text in texts:
            self._place += 1
            return token
        return None

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _not(self) -> Condition:
        start = self._here
        self._depth += 1
        if self._depth > DEPTH_CAP:
            raise _error(self._text, start.start, f"is nested deeper than {DEPTH_CAP} levels")
        try:
            if self._take("not"):
                return _Not(self._not())
            if self._take("("):
                inner = self._any()
                if not self._take(")"):
                    raise self._expected("a closing parenthesis")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Condition:
        token = self._here
        if token.kind != "word":
            raise self._expected("a field, such as metrics.f1")
        try:
            field = parse_field(_plain(token.text))
        except UsageError as error:
            raise _error(self._text, token.start, error.message.rstrip("."), hint=error.hint) from error
        self._place += 1
        self._fields.append(field)
        if self._take("not"):
            if not self._take("in"):
                raise self._expected("in")
            return _Not(_Comparison(field, self._choice(field)))
        if self._take("in"):
            return _Comparison(field, self._choice(field))
        sign = self._take(*OPERATORS, "==")
        if sign is None:
            return _Present(field)
        name = "=" if sign.text == "==" else sign.text
        if name not in operators_of(field):
            said = f"{field.text} cannot be compared by {name}"
            raise _error(
                self._text, sign.start, said, hint=f"It takes: {', '.join(operators_of(field))}, in."
            )
        return _Comparison(field, self._value(field, name))

    def _choice(self, field: Field) -> Test:
        if not self._take("("):
            raise self._expected("a list in parentheses")
        tests = [self._value(field, "=")]
        while self._take(","):
            tests.append(self._value(field, "="))
        if not self._take(")"):
            raise self._expected("a comma or a closing parenthesis")
        return lambda value: any(test(value) for test in tests)

    def _value(self, field: Field, name: str) -> Test:
        token = self._here
        if token.kind not in {"word", "quoted"}:
            raise self._expected(f"a value for {field.text}")
        try:
            quoted = token.kind == "quoted"
            text = token.text[1:-1] if quoted else _plain(token.text)
            test = test_of(field, name, text, quoted=quoted, now=self._now)
        except UsageError as error:
            raise _error(self._text, token.start, error.message.rstrip("."), hint=error.hint) from error
        self._place += 1
        return test

    def _expected(self, what: str) -> UsageError:
        token = self._here
        found = "it ends" if token.kind == "end" else f"there is {printable(token.text, 40)!r}"
        hint = ""
        if token.kind == "word":
            hint = did_you_mean(token.text.lower(), [*_KEYWORDS])
            hint = hint if hint.startswith("Did") else ""
        return _error(self._text, token.start, f"{what} was expected, and {found}", hint=hint)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            char = text[start]
            said = "a quote is not closed" if char in "\"'`" else f"{printable(char)!r} means nothing here"
            raise _error(text, start, said, hint="Write and, or, not." if char in "&|!" else "")
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "word" and word.lower() in _KEYWORDS:
            kind, word = "keyword", word.lower()
        found.append(_Token(kind, word, match.start(match.lastgroup)))
        place = match.end()
    return [*found, _Token("end", "", end)]


def _plain(word: str) -> str:
    """A field as it was written, without its quotes."""
    return re.sub("[`\"']", "", word)


def _error(text: str, place: int, said: str, *, hint: str = "") -> UsageError:
    first = max(0, place - _EXCERPT // 2)
    shown = printable(text[first : first + _EXCERPT])
    before = printable(text[first:place])
    return UsageError(
        f"--where, character {place + 1}: {said}.",
        hint=hint or "A comparison reads FIELD OPERATOR VALUE, for example: metrics.f1 >= 0.9",
        position=place + 1,
        excerpt=[shown, " " * len(before) + "^"],
    )
