"""Texts as numbers and categories: length, scripts, tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.tensors import Array, text_column

_CHUNK = 1 << 22  # characters that are looked at together
_ASCII = 128
_SPANS: tuple[tuple[int, str], ...] = (
    (0x00, "other"),
    (0x30, "digits"),
    (0x3A, "other"),
    (0x41, "latin"),
    (0x5B, "other"),
    (0x61, "latin"),
    (0x7B, "other"),
    (0xC0, "latin"),
    (0x250, "other"),
    (0x370, "greek"),
    (0x400, "cyrillic"),
    (0x530, "armenian"),
    (0x590, "hebrew"),
    (0x600, "arabic"),
    (0x700, "other"),
    (0x750, "arabic"),
    (0x780, "other"),
    (0x8A0, "arabic"),
    (0x900, "devanagari"),
    (0x980, "indic"),
    (0xE00, "thai"),
    (0xE80, "other"),
    (0x10A0, "georgian"),
    (0x1100, "hangul"),
    (0x1200, "other"),
    (0x1E00, "latin"),
    (0x1F00, "greek"),
    (0x2000, "other"),
    (0x2600, "symbols"),
    (0x27C0, "other"),
    (0x3040, "kana"),
    (0x3100, "other"),
    (0x3400, "han"),
    (0x4DC0, "other"),
    (0x4E00, "han"),
    (0xA000, "other"),
    (0xAC00, "hangul"),
    (0xD800, "other"),
    (0xF900, "han"),
    (0xFB00, "other"),
    (0xFB50, "arabic"),
    (0xFE00, "other"),
    (0xFE70, "arabic"),
    (0xFF00, "other"),
    (0x1F300, "symbols"),
    (0x1FB00, "other"),
    (0x20000, "han"),
    (0x32000, "other"),
)
"""Blocks of Unicode from their first character on, each up to the next."""
_STARTS = np.asarray([start for start, _ in _SPANS], dtype=np.uint32)
_LETTERS = tuple(sorted({name for _, name in _SPANS} - {"digits", "symbols", "other"}))
_SCRIPTS = (*_LETTERS, "digits", "symbols", "other")
_SCRIPT_AT = np.asarray([_SCRIPTS.index(name) for _, name in _SPANS], dtype=np.int64)

Texts = Sequence[str | None]


def read_texts(column: Array) -> Texts:
    """Cells as texts, bytes read as UTF-8; None for what is none, so that one bad cell costs no other."""
    return [_text(cell) for cell in column.reshape(-1).tolist()]


def _text(cell: Any) -> str | None:
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return None
    return cell if isinstance(cell, str) else None


def lengths(name: str, texts: Texts) -> dict[str, Array]:
    """`NAME.chars` and `NAME.words`, the words as white space parts them."""
    present = [text or "" for text in texts]
    found: dict[str, Array] = {
        f"{name}.chars": np.fromiter(map(len, present), np.int64, len(present)),
        f"{name}.words": np.fromiter((len(text.split()) for text in present), np.int64, len(present)),
    }
    return {key: without(values, texts) for key, values in found.items()}


def without(values: Array, texts: Texts) -> Array:
    """Numbers [rows], those of missing texts not a number."""
    missing = [row for row, text in enumerate(texts) if text is None]
    if not missing:
        return values
    values = values.astype(np.float64)
    values[missing] = np.nan
    return values


def scripts(name: str, texts: Texts) -> dict[str, Array]:
    """The script of most letters of a text, and which share of its characters is a digit or not ASCII.

    Letters and not all characters decide, since most languages share digits, spaces and punctuation. A text
    without letters is `digits`, `symbols` or `none`.
    """
    present = [text or "" for text in texts]
    counts = np.zeros((len(present), len(_SCRIPTS)), dtype=np.int64)
    beyond = np.zeros(len(present), dtype=np.int64)
    for rows in _chunks(present):
        points, owner = _code_points(present[rows])
        kind = _SCRIPT_AT[np.searchsorted(_STARTS, points, side="right") - 1]
        height = rows.stop - rows.start
        flat = np.bincount(owner * len(_SCRIPTS) + kind, minlength=height * len(_SCRIPTS))
        counts[rows] = flat.reshape(height, len(_SCRIPTS))
        beyond[rows] = np.bincount(owner, weights=points >= _ASCII, minlength=height).astype(np.int64)
    size = np.maximum(counts.sum(axis=1), 1)
    digits = counts[:, _SCRIPTS.index("digits")]
    most = _main(counts)
    return {
        f"{name}.script": text_column(
            [None if text is None else main for text, main in zip(texts, most, strict=True)]
        ),
        f"{name}.digits": without(digits / size, texts),
        f"{name}.non_ascii": without(beyond / size, texts),
    }


def _main(counts: npt.NDArray[np.int64]) -> list[str]:
    letters = counts[:, : len(_LETTERS)]
    names = np.asarray([*_LETTERS, "digits", "symbols", "none"], dtype=object)
    others = np.where(counts[:, len(_LETTERS)] > 0, 0, np.where(counts[:, len(_LETTERS) + 1] > 0, 1, 2))
    chosen = np.where(letters.any(axis=1), letters.argmax(axis=1), len(_LETTERS) + others)
    found: list[str] = names[chosen].tolist()
    return found


def _chunks(texts: Sequence[str]) -> Iterator[slice]:
    start = size = 0
    for row, text in enumerate(texts):
        if size and size + len(text) > _CHUNK:
            yield slice(start, row)
            start, size = row, 0
        size += len(text)
    if start < len(texts):
        yield slice(start, len(texts))


def _code_points(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """All characters one after another, and the text each belongs to."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    return np.frombuffer(joined, "<u4"), np.repeat(np.arange(len(texts)), sizes)


def tokens(name: str, texts: Texts, tokenizer: Any, limit: int) -> dict[str, Array]:
    """How many tokens a text has, which share of them the tokenizer does not know, and if it is too long.

    Args:
        name: of the column.
        texts: as the tokenizer gets them.
        tokenizer: of the package, without padding and truncation.
        limit: tokens that the model takes.
    """
    present = [(text or "").encode("utf-8", "replace").decode() for text in texts]
    encodings = tokenizer.encode_batch_fast(present)
    sizes = np.fromiter(map(len, encodings), np.int64, len(encodings))
    found: dict[str, Array] = {
        f"{name}.tokens": without(sizes, texts),
        f"{name}.truncated": text_column(
            [
                None if text is None else "true" if size > limit else "false"
                for text, size in zip(texts, sizes.tolist(), strict=True)
            ]
        ),
    }
    unknown = _unknown(tokenizer)
    if unknown is not None:
        met = np.fromiter((each.ids.count(unknown) for each in encodings), np.int64, len(encodings))
        found[f"{name}.unknown"] = without(met / np.maximum(sizes, 1), texts)
    return found


def _unknown(tokenizer: Any) -> int | None:
    """The id that stands for what is not in the vocabulary; None where everything is."""
    token = getattr(tokenizer.model, "unk_token", None)
    found: int | None = tokenizer.token_to_id(token) if token else None
    return found
