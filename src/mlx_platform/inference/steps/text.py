"""Steps for text: cleaning and tokenizing, with the library the tokenizer was trained with."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.core.text import plural, printable
from mlx_platform.inference.parts import MERGES
from mlx_platform.inference.steps.step import (
    PARTS,
    WEIGHTS,
    Batch,
    CellError,
    Options,
    Site,
    Step,
    asset_path,
)


def as_texts(column: Array, name: str, max_chars: int) -> list[str]:
    """A column as a list of strings; bytes are UTF-8.

    Raises:
        CellError: a cell is missing, no text, no UTF-8, or longer than `max_chars`.
    """
    cells: list[Any] = column.reshape(-1).tolist()
    for row, cell in enumerate(cells):
        if isinstance(cell, bytes):
            try:
                cells[row] = cell.decode()
            except UnicodeDecodeError as error:
                raise CellError(name, row, "the bytes are no UTF-8 text") from error
        elif not isinstance(cell, str):
            problem = "the text is missing" if cell is None else f"{printable(repr(cell), 80)} is no text"
            raise CellError(name, row, problem)
        if len(cells[row]) > max_chars:
            raise CellError(
                name, row, f"the text has {len(cells[row]):,} characters, more than {max_chars:,}"
            )
    return cells


class CleanStep(Step):
    """`clean`: Unicode normal form, then white space and case, in this order."""

    kind = "clean"
    cheap = False

    def __init__(self, options: Options, site: Site) -> None:
        self._column = options.text("column", required=True)
        self._form: Any = options.choice("form", ("NFC", "NFKC", "NFD", "NFKD", "none"), "NFC")
        self._strip = options.take("strip", bool, default=True)
        self._collapse = options.take("collapse", bool, default=False)
        self._lower = options.take("lower", bool, default=False)
        options.done()
        self._max_chars = site.max_text_chars
        self.takes = {self._column: "text"}
        self.makes = (self._column,)

    def __call__(self, batch: Batch) -> Batch:
        texts = as_texts(batch[self._column], self._column, self._max_chars)
        return batch | {self._column: text_column([self._clean(text) for text in texts])}

    def _clean(self, text: str) -> str:
        if self._form != "none":
            text = unicodedata.normalize(self._form, text)
        if self._collapse:
            text = " ".join(text.split())
        elif self._strip:
            text = text.strip()
        return text.lower() if self._lower else text


class TokenizeStep(Step):
    """`tokenize`: text to token ids with a `tokenizers` JSON file, padded to the longest text of the batch.

    Feeds those of `input_ids`, `attention_mask` and `token_type_ids` that the model has; `ids`, `mask` and
    `types` give them other names. A text that is too long is refused, cut, or taken in parts of which each
    repeats the last `overlap` tokens of the one before.
    """

    kind = "tokenize"
    cheap = False

    def __init__(self, options: Options, site: Site) -> None:
        self._column = options.text("column", required=True)
        self._asset = options.text("asset", "tokenizer.json")
        self._max_length = options.integer("max_length", 128, minimum=2)
        self._length = options.choice("length", ("refuse", "truncate", "split"), "truncate")
        self._overlap = options.integer("overlap", 0, minimum=0)
        self._max_parts = options.integer("max_parts", 16, minimum=1)
        merge: Any = options.choice("merge", MERGES, "mean")
        self._pad_to = options.choice("pad", ("longest", "max"), "longest")
        self._pad_id = options.integer("pad_id", 0, minimum=0)
        inputs = {tensor.name: tensor for tensor in site.inputs}
        wanted = {
            "ids": options.text("ids", "input_ids"),
            "mask": options.text("mask", "attention_mask"),
            "types": options.text("types", "token_type_ids"),
        }
        options.done()
        if wanted["ids"] not in inputs:
            raise UsageError(f"Step 'tokenize' feeds {wanted['ids']!r}, which is no input of the model.")
        if self._length == "split":
            self.merge = merge
        self._feeds = {role: inputs[name] for role, name in wanted.items() if name in inputs}
        self._max_chars = site.max_text_chars
        self._tokenizer: Any = None
        self.takes = {self._column: "text"}
        self.makes = tuple(spec.name for spec in self._feeds.values())

    @property
    def column(self) -> str:
        return self._column

    @property
    def max_length(self) -> int:
        """The most tokens of one run, special ones included."""
        return self._max_length

    def whole_texts(self, root: Path) -> Any:
        """The tokenizer, which neither pads nor cuts.

        Raises:
            UsageError: it cannot be read.
        """
        from tokenizers import Tokenizer

        path = asset_path(root, self._asset, self.kind)
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every bad file
            raise UsageError(
                f"assets/{self._asset} is no tokenizer: {printable(str(error), 200)}."
            ) from error
        # Padding and truncation are the package's decision, not that of whoever saved the tokenizer.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    def load(self, root: Path) -> None:
        tokenizer = self.whole_texts(root)
        special = tokenizer.num_special_tokens_to_add(is_pair=False)
        if special + self._overlap >= self._max_length:
            raise UsageError(
                f"Step 'tokenize': max_length = {self._max_length} leaves no room for text beside "
                f"{plural(special, 'special token')} and an overlap of {self._overlap}."
            )
        if self._length != "refuse":
            tokenizer.enable_truncation(self._max_length, stride=self._overlap)
        self._tokenizer = tokenizer

    def lengths(self, batch: Batch) -> Array | None:
        if self._pad_to == "max" or self._column not in batch:
            return None
        cells: list[Any] = batch[self._column].reshape(-1).tolist()
        return np.array([len(cell) if isinstance(cell, str | bytes) else 0 for cell in cells])

    def __call__(self, batch: Batch) -> Batch:
        texts = as_texts(batch[self._column], self._column, self._max_chars)
        encodings = self._tokenizer.encode_batch(texts)
        counts: Batch = {}
        if self._length == "split":
            encodings, counts = self._in_parts(encodings)
        lengths = [len(encoding.ids) for encoding in encodings]
        for row, length in enumerate(lengths):
            if length > self._max_length:
                raise CellError(
                    self._column, row, f"the text has {plural(length, 'token')}, more than {self._max_length}"
                )
        width = self._max_length if self._pad_to == "max" else max(1, *lengths)
        made: Batch = {}
        for role, spec in self._feeds.items():
            fill = self._pad_id if role == "ids" else 0
            tensor = np.full((len(encodings), width), fill, dtype=spec.numpy_type)
            for row, encoding in enumerate(encodings):
                tensor[row, : lengths[row]] = _part(encoding, role)
            made[spec.name] = tensor
        return batch | made | counts

    def _in_parts(self, encodings: list[Any]) -> tuple[list[Any], Batch]:
        """All parts of all texts, and how many each text has; a part weighs as many tokens as are text."""
        split = [[encoding, *encoding.overflowing] for encoding in encodings]
        for row, parts in enumerate(split):
            if len(parts) > self._max_parts:
                problem = f"the text has {len(parts)} parts of {self._max_length} tokens"
                raise CellError(self._column, row, f"{problem}, more than {self._max_parts}")
        flat = [part for parts in split for part in parts]
        weights = [max(1, len(part.ids) - sum(part.special_tokens_mask)) for part in flat]
        return flat, {
            PARTS: np.array([len(parts) for parts in split], dtype=np.int64),
            WEIGHTS: np.array(weights, dtype=np.float64),
        }


def _part(encoding: Any, role: str) -> list[int]:
    parts: dict[str, list[int]] = {
        "ids": encoding.ids,
        "mask": encoding.attention_mask,
        "types": encoding.type_ids,
    }
    return parts[role]
