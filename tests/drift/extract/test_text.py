import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_models import embedder_package

from mlx_platform.core.tensors import text_column
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.extract.text import lengths, read_texts, scripts
from mlx_platform.inference.package import open_package


def test_tokens_are_counted_by_the_packages_own_tokenizer_beyond_what_the_model_takes(tmp_path):
    package = open_package(embedder_package(tmp_path / "model"))
    look = InputFeatures(package.spec, package.root)

    found = look({"text": text_column(["a great film", "a zebra", "the " * 40, None])})

    assert found["text.tokens"].tolist() == pytest.approx([3, 2, 40, float("nan")], nan_ok=True)
    assert found["text.truncated"].tolist() == ["false", "false", "true", None]
    assert found["text.unknown"].tolist() == pytest.approx([0, 0.5, 0, float("nan")], nan_ok=True)


def test_the_script_of_most_letters_is_the_script_of_a_text():
    texts = ["Tempo 30!", "Привет, me", "你好吗 ok", "ひらがな", "12 + 3", "🎉", "...", "", None]

    found = scripts("t", texts)["t.script"].tolist()

    assert found == ["latin", "cyrillic", "han", "kana", "digits", "symbols", "none", "none", None]


def test_a_cell_that_is_no_text_is_missing_and_costs_no_other():
    texts = read_texts(text_column(["a b", 5, b"\xff", b"caf\xc3\xa9", None]))

    assert texts == ["a b", None, None, "café", None]
    assert lengths("t", texts)["t.words"].tolist() == pytest.approx(
        [2, float("nan"), float("nan"), 1, float("nan")], nan_ok=True
    )


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20))
def test_texts_are_measured_one_by_one(texts):
    together = scripts("t", texts)

    for row, text in enumerate(texts):
        alone = scripts("t", [text])
        assert {key: values[0] for key, values in alone.items()} == {
            key: values[row] for key, values in together.items()
        }
        assert together["t.non_ascii"][row] == sum(ord(char) > 127 for char in text) / max(1, len(text))
