import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.inference.steps.catalog import PRE, make_step
from mlx_platform.inference.steps.step import PARTS, WEIGHTS, CellError, Site

INPUTS = (
    TensorSpec("input_ids", "INT64", (None, None)),
    TensorSpec("attention_mask", "INT32", (None, None)),
)
SITE = Site(INPUTS, (), (), 40, 100)


@pytest.fixture
def root(tmp_path):
    words = {"[PAD]": 0, "[CLS]": 1, "[UNK]": 2, "good": 3, "film": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106 - a token of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.enable_padding(length=77)
    (tmp_path / "assets").mkdir()
    tokenizer.save(str(tmp_path / "assets" / "tokenizer.json"))
    return tmp_path


def tokenize(root, **options):
    step = make_step("tokenize", {"column": "text"} | options, SITE, PRE)
    step.load(root)
    return step


def clean(**options):
    return make_step("clean", {"column": "text"} | options, SITE, PRE)


def test_tokens_are_padded_to_the_longest_text_of_the_batch(root):
    made = tokenize(root)({"text": text_column(["good film", "film"])})

    assert made["input_ids"].tolist() == [[1, 3, 4], [1, 4, 0]]
    assert made["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert made["attention_mask"].dtype == np.int32


def test_padding_can_be_to_the_maximum_with_another_id(root):
    made = tokenize(root, pad="max", max_length=4, pad_id=9)({"text": text_column(["film"])})

    assert made["input_ids"].tolist() == [[1, 4, 9, 9]]


def test_a_text_that_is_too_long_is_cut_or_refused(root):
    texts = {"text": text_column(["film", "good good film"])}

    assert tokenize(root, max_length=3)(texts)["input_ids"].tolist() == [[1, 4, 0], [1, 3, 3]]
    with pytest.raises(CellError, match="4 tokens, more than 3") as caught:
        tokenize(root, max_length=3, length="refuse")(texts)
    assert caught.value.row == 1


def test_a_text_that_is_too_long_can_be_taken_in_parts_that_overlap(root):
    texts = {"text": text_column(["good film good film film", "film", ""])}

    made = tokenize(root, length="split", max_length=3)(texts)
    assert made["input_ids"].tolist() == [[1, 3, 4], [1, 3, 4], [1, 4, 0], [1, 4, 0], [1, 0, 0]]
    assert made[PARTS].tolist() == [3, 1, 1]
    assert made[WEIGHTS].tolist() == [2, 2, 1, 1, 1]

    made = tokenize(root, length="split", max_length=3, overlap=1)(texts)
    assert made["input_ids"].tolist()[:4] == [[1, 3, 4], [1, 4, 3], [1, 3, 4], [1, 4, 4]]


def test_a_text_of_too_many_parts_is_refused(root):
    texts = {"text": text_column(["film", "film " * 7])}

    with pytest.raises(CellError, match="4 parts of 3 tokens, more than 3") as caught:
        tokenize(root, length="split", max_length=3, max_parts=3)(texts)
    assert caught.value.row == 1


def test_a_length_that_leaves_no_room_for_text_is_refused(root):
    with pytest.raises(UsageError, match="1 special token and an overlap of 2"):
        tokenize(root, length="split", max_length=3, overlap=2)


def test_an_empty_text_has_tokens_all_the_same(root):
    assert tokenize(root)({"text": text_column([""])})["input_ids"].tolist() == [[1]]


def test_a_tokenizer_that_is_none_is_refused(root):
    (root / "assets" / "tokenizer.json").write_text("{}")

    with pytest.raises(UsageError, match="no tokenizer"):
        tokenize(root)


def test_a_model_without_ids_cannot_take_tokens():
    with pytest.raises(UsageError, match="no input of the model"):
        make_step("tokenize", {"column": "text", "ids": "tokens"}, SITE, PRE)


def test_clean_normalises_strips_and_lowers():
    made = clean(lower=True, collapse=True)({"text": text_column(["  Cafe\u0301  BAR ", b"\xc3\x84"])})

    assert made["text"].tolist() == ["caf\u00e9 bar", "\u00e4"]


def test_clean_changes_nothing_it_was_not_asked_to():
    assert (
        clean(form="none", strip=False)({"text": text_column([" Cafe\u0301 "])})["text"][0] == " Cafe\u0301 "
    )


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (None, "missing"),
        (3, "3 is no text"),
        (b"\xff", "no UTF-8"),
        ("x" * 41, "41 characters, more than 40"),
    ],
)
def test_a_cell_that_is_no_text_is_named(cell, problem):
    with pytest.raises(CellError, match=problem) as caught:
        clean()({"text": text_column(["x" * 40, cell])})

    assert caught.value.row == 1
