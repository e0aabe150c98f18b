"""What tells texts apart that an embedding model finds alike: numbers, and words such as `not`."""

import re
from collections import Counter
from collections.abc import Iterable

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")  # noqa: RUF001 - the apostrophe of printed text
_SHORT_NOT = "n't"


class Telling:
    """Finds what has to be equal in two texts for them to mean the same.

    Models that turn texts into vectors hardly see a negation or another number: "Is this covered?" and "Is
    this not covered?" lie closer together than most ways of asking the same.

    Args:
        words: in lower case; `n't` stands for the end of words such as `isn't`.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(word.casefold() for word in words)

    def marks(self, text: str) -> bytes:
        """The numbers of a text in order, and how often each telling word stands in it."""
        folded = text.casefold().replace("’", "'")  # noqa: RUF001 - as above
        counts: Counter[str] = Counter()
        for word in _WORD.findall(folded):
            if word in self._words:
                counts[word] += 1
            elif word.endswith(_SHORT_NOT) and _SHORT_NOT in self._words:
                counts["not" if "not" in self._words else _SHORT_NOT] += 1
        numbers = "\0".join(_NUMBER.findall(folded))
        return f"{numbers}\n{sorted(counts.items())}".encode("utf-8", "surrogatepass")
