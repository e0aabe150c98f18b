"""The words that the baseline's texts use, and how many of a text's words are not among them."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array

Hashes = npt.NDArray[np.uint32]
KEPT = 131_072
"""Words of a vocabulary at most. Where there are more, those that too few texts hold are left out."""
_GATHERED = 4_000_000  # words that are counted before the rarest are let go
_BETWEEN_WORDS = r"[^\pL\pM\pN_]+"


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Known words as the CRC-32 of their UTF-8 in lower case, ascending.

    An unknown word passes for a known one once in 32,768 times at most.
    """

    words: Hashes

    def unknown(self, texts: Sequence[str | None]) -> Array:
        """The share of words of each text that are not known [rows]; NaN for a text without words."""
        hashes, owner = _words(texts)
        at = np.searchsorted(self.words, hashes)
        known = (
            (at < len(self.words)) & (self.words[np.minimum(at, len(self.words) - 1)] == hashes)
            if len(self.words)
            else np.zeros(len(hashes), dtype=np.bool_)
        )
        total = np.bincount(owner, minlength=len(texts))
        missed = np.bincount(owner, weights=~known, minlength=len(texts))
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Array = missed / total
        return share

    def document(self) -> dict[str, Any]:
        return {"crc32": base64.b64encode(self.words.astype("<u4").tobytes()).decode()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote.

        Raises:
            UsageError: it is none.
        """
        words = np.frombuffer(base64.b64decode(document["crc32"]), "<u4").astype(np.uint32)
        if len(words) > 1 and not (words[1:] > words[:-1]).all():
            raise UsageError("The words of a vocabulary are not in ascending order.")
        return cls(words)


@dataclass(slots=True)
class VocabularyDraft:
    """Counts in how many texts each word occurs."""

    _hashes: Hashes = field(default_factory=lambda: np.empty(0, np.uint32))
    _texts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, texts: Sequence[str | None]) -> None:
        hashes, owner = _words(texts)
        once = np.unique((owner.astype(np.uint64) << np.uint64(32)) | hashes) & np.uint64(0xFFFFFFFF)
        words, found = np.unique(once.astype(np.uint32), return_counts=True)
        both, place = np.unique(np.concatenate([self._hashes, words]), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate([self._texts, found]), minlength=len(both))
        self._hashes, self._texts = both, counts.astype(np.int64)
        if len(both) > _GATHERED:
            often = self._texts > 1
            self._hashes, self._texts = self._hashes[often], self._texts[often]

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The words that texts to come are looked up in, and those for the texts they were learnt from.

        A text of the baseline knows each word that it brought in itself, and no other does: it would seem
        better known than all that come later. So its words are known only where another text has them too,
        which is what can be said of any text.
        """
        least = 1
        while int((self._texts >= least).sum()) > KEPT:
            least += 1
        return self._of_texts(least), self._of_texts(least + 1)

    def _of_texts(self, least: int) -> Vocabulary:
        return Vocabulary(self._hashes[self._texts >= least])


def _words(texts: Sequence[str | None]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """All words of all texts as hashes, and the text each belongs to."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = [(text or "").encode("utf-8", "replace").decode() for text in texts]
    lists = pc.split_pattern_regex(pc.utf8_lower(pa.array(cells, pa.large_string())), _BETWEEN_WORDS)
    sizes = np.diff(np.from_dlpack(lists.offsets))
    owner = np.repeat(np.arange(len(cells)), sizes)
    coded = lists.flatten().dictionary_encode()
    spelled = coded.dictionary.to_pylist()
    hashes = np.fromiter((zlib.crc32(word.encode()) for word in spelled), np.uint32, len(spelled))
    codes = np.from_dlpack(coded.indices)
    used = np.fromiter(map(bool, spelled), np.bool_, len(spelled))[codes]
    return hashes[codes][used], owner[used]
