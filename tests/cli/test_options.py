import pytest
from support import RunCommand

from mlx_platform.cli.options import numbers, pairs
from mlx_platform.core.errors import UsageError


def test_pairs_keep_what_follows_the_first_equals_sign() -> None:
    assert pairs(["lr=0.1", "note=a=b", "empty="], "--param") == {"lr": "0.1", "note": "a=b", "empty": ""}


@pytest.mark.parametrize("word", ["lr", "=1", " =1", ""])
def test_a_pair_needs_a_key_and_an_equals_sign(word: str) -> None:
    with pytest.raises(UsageError, match="--param takes key=value"):
        pairs([word], "--param")


def test_a_key_has_one_value() -> None:
    with pytest.raises(UsageError, match="--param names 'a' twice"):
        pairs(["a=1", "b=2", " a=2"], "--param")
    with pytest.raises(UsageError, match="--metric names 'f1' twice"):
        numbers(["f1=1", "f1=1"], "--metric")


@pytest.mark.parametrize("word", ["f1=high", "f1=", "f1=nan", "f1=inf", "f1=1e999"])
def test_a_metric_is_a_finite_number(word: str) -> None:
    with pytest.raises(UsageError, match="--metric f1="):
        numbers([word], "--metric")


def test_numbers_are_read() -> None:
    assert numbers(["f1=0.9", "n=10"], "--metric") == {"f1": 0.9, "n": 10.0}


@pytest.mark.parametrize("actor", ["x" * 100_000, "a\ud800"])
def test_an_actor_that_cannot_be_kept_is_refused(mlx: RunCommand, actor: str) -> None:
    outcome = mlx("list", "--actor", actor)

    assert outcome.code == 2
    assert "actor" in outcome.err
    assert "Traceback" not in outcome.err
    assert len(outcome.err) < 500
