import pytest

from mlx_platform.serving.rollout.assignment import BUCKETS, bucket, goes_to_candidate, is_copied

KEYS = [f"user-{number}" for number in range(20_000)]


def test_a_key_keeps_its_bucket_and_another_rollout_gives_it_another() -> None:
    assert bucket("a1", "user-7") == bucket("a1", b"user-7") == bucket("a1", "user-7")
    assert len({bucket(f"rollout-{number}", "user-7") for number in range(50)}) > 40
    assert all(0 <= bucket("a1", key) < BUCKETS for key in KEYS[:1000])


def test_a_higher_weight_takes_nobody_back_and_zero_takes_all() -> None:
    before: set[str] = set()
    for percent in (0.01, 1, 5, 20, 50, 99.99, 100):
        chosen = {key for key in KEYS[:5000] if goes_to_candidate("a1", key, percent)}
        assert before <= chosen
        before = chosen

    assert before == set(KEYS[:5000])
    assert not any(goes_to_candidate("a1", key, 0) for key in KEYS[:5000])


@pytest.mark.parametrize("percent", [0.29, 1, 5, 50])
def test_the_candidate_answers_the_share_that_it_should(percent: float) -> None:
    share = 100 * sum(goes_to_candidate("a1", key, percent) for key in KEYS) / len(KEYS)

    # Four standard deviations of 20,000 independent keys, which the hash is to be as good as.
    assert share == pytest.approx(percent, abs=400 * (percent / 100 * (1 - percent / 100) / len(KEYS)) ** 0.5)


def test_a_weight_of_a_few_hundredths_is_not_rounded_away() -> None:
    every = [key for key in KEYS if bucket("a1", key) == 28]

    assert every
    assert all(goes_to_candidate("a1", key, 0.29) and not goes_to_candidate("a1", key, 0.28) for key in every)


def test_copies_are_drawn_apart_from_the_requests_that_the_candidate_answers() -> None:
    chosen = [key for key in KEYS if goes_to_candidate("a1", key, 50)]
    copied = sum(is_copied("a1", key, 50) for key in chosen) / len(chosen)

    assert copied == pytest.approx(0.5, abs=0.03)
    assert all(is_copied("a1", key, 100) for key in KEYS[:100])
    assert not any(is_copied("a1", key, 0) for key in KEYS[:100])


def test_any_text_is_a_key() -> None:
    assert bucket("x" * 500, "") != bucket("x" * 501, "") or bucket("x" * 500, "a") != bucket("x" * 501, "a")
    assert 0 <= bucket("a1", "\ud800") < BUCKETS
