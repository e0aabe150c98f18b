from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.registry.fields import Known
from mlx_platform.registry.row import Row
from mlx_platform.registry.version import version_of
from mlx_platform.registry.where import DEPTH_CAP, LENGTH_CAP, parse_where

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DIGEST = "d" * 64
EVALUATION = (
    f'{{"digest": "{DIGEST}", "verdict": "pass", "created": "2026-11-20T00:00:00Z", '
    '"numbers": {"accuracy": {"value": 0.95, "lower": 0.93}, "f1.macro": 0.9, "rows": 500, "gates": [1]}}'
)
TAGS = {
    "mlx.digest": DIGEST,
    "mlx.size": "12000000",
    "mlx.dataset": "2026-11",
    "mlx.git_commit": "0123abcd+dirty",
    "mlx.metrics": '{"f1": 0.9, "eval/f1": 0.8, "f1 macro": 0.7}',
    "mlx.params": '{"lr": "0.050", "optimizer": "adam", "epochs": "10"}',
    "mlx.evidence.evaluation": EVALUATION,
    "team": "vision",
}


def known(tags: Mapping[str, str] = TAGS, aliases: Mapping[str, int] | None = None) -> Known:
    created = int(datetime(2026, 11, 1, 15, tzinfo=UTC).timestamp() * 1000)
    row = Row("digits", 12, created, "models:/m-1", "r" * 32, "", tags)
    version = version_of(row, {"production": 12} if aliases is None else aliases)
    assert version
    return Known(version)


def holds(expression: str, of: Known | None = None) -> bool:
    return parse_where(expression, now=NOW).matches(of or known())


@pytest.mark.parametrize(
    "expression",
    [
        "metrics.f1 >= 0.9 and params.lr < 0.1 or not (dataset == '2026-11')",
        "metrics.f1 = 0.90",
        "metrics.f1>=.9",
        "metrics.f1 > -1e-3",
        "metrics.eval/f1 = 0.8",
        "metrics.`f1 macro` = 0.7",
        'metrics."f1 macro" = 0.7',
        "params.lr = 0.05",
        'params.lr != "0.05"',
        "params.epochs > 9",
        "params.optimizer startswith ad and params.optimizer contains 'da'",
        "params.optimizer > aaron",
        "params.optimizer != 3",
        "tags.team in (speech, vision)",
        "tags.team not in (speech, 'text')",
        "dataset >= 2026-10 and dataset < 2026-12",
        "git_commit startswith 0123abc and git_commit contains dirty",
        "alias = production and aliases contains production and alias != staging",
        "state = production and not candidate and not archived and quantized = no",
        "label = digits-20261101-012 and name = digits and version = 12 and version in (11, 12)",
        "created = 2026-11-01 and created >= 2026-11-01 and created <= 2026-11-01",
        "created > 2026-10-31 and created < 2026-11-02 and created != 2026-11-02",
        "created = 2026-11-01T15:00:00Z and created > 2026-11-01T14:59:59+00:00 and created < 7d",
        "size = 12MB and size > 11999.9kB and size < 0.1GB",
        "evaluation.accuracy = 0.95 and evidence.evaluation.accuracy.lower >= 0.93",
        "evaluation.f1.macro = 0.9 and evaluation.rows = 500",
        "evidence.evaluation = pass and evaluation.verdict != fail and evaluation.created > 2026-11-19",
        "NOT archived AND (alias = staging OR alias = production)",
        "metrics.f1 and evidence.evaluation and not params.momentum and not parent",
    ],
)
def test_an_expression_is_true(expression: str) -> None:
    assert holds(expression)
    assert not holds(f"not ({expression})")


@pytest.mark.parametrize(
    "expression",
    [
        "metrics.recall > 0",
        "metrics.recall <= 0",
        "metrics.recall != 0",
        "metrics.recall = 0 or metrics.recall != 0",
        "params.momentum in (1, 2)",
        "params.optimizer < 3",
        "evidence.drift = pass",
        "evaluation.recall < 1",
        "parent != 'digits/3'",
    ],
)
def test_what_is_not_known_matches_neither_way(expression: str) -> None:
    assert not holds(expression)
    assert not holds(f"not ({expression})")


def test_the_unknown_gives_way_to_what_decides() -> None:
    assert holds("metrics.recall > 0 or metrics.f1 > 0")
    assert holds("not (metrics.recall > 0 and metrics.f1 > 1)")
    assert not holds("metrics.recall > 0 and metrics.f1 > 0")


def test_and_binds_before_or_and_not_before_both() -> None:
    assert holds("alias = production or alias = staging and version = 1")
    assert not holds("(alias = production or alias = staging) and version = 1")
    assert holds("not archived or alias = staging")


def test_a_version_without_alias_is_known_to_have_none() -> None:
    waiting = known(aliases={})

    assert holds("alias != production and not alias and state = candidate and candidate", waiting)
    assert holds("state = 'staging candidate'", waiting)
    assert holds("archived and state = archived", known({"mlx.archived": "true"}, {}))


@pytest.mark.parametrize(
    ("expression", "place", "said"),
    [
        ("", 1, "a field, such as metrics.f1 was expected"),
        ("metrics.f1 >", 13, "a value for metrics.f1"),
        ("metrics.f1 > 0.9 an params.lr", 18, "Did you mean 'and'"),
        ("metrc.f1 > 1", 1, "Did you mean 'metrics.f1'"),
        ("version = 1 and datset = x", 17, "Did you mean 'dataset'"),
        ("metrics > 1", 1, "needs a key"),
        ("metrics.f1 > high", 14, "is a number"),
        ("metrics.f1 > nan", 14, "is a number"),
        ("metrics.f1 contains 9", 12, "cannot be compared by contains"),
        ("alias > 3", 7, "cannot be compared by >"),
        ("archived = maybe", 12, "yes or no"),
        ("created > 2026-13-01", 11, "no day of the calendar"),
        ("created > yesterday", 11, "no time"),
        ("size > 10 parsecs", 11, "an operator"),
        ("(version = 1", 13, "a closing parenthesis"),
        ("version = 1)", 12, "an operator"),
        ("version in 1", 12, "a list in parentheses"),
        ("version not = 1", 13, "in was expected"),
        ("version in (1, 2", 17, "a comma or a closing parenthesis"),
        ("params.lr = '0.1", 13, "a quote is not closed"),
        ("version = 1 && archived", 13, "Write and, or, not"),
        ("__import__('os')", 1, "There is no field"),
        ("not " * (DEPTH_CAP + 1) + "archived", 4 * DEPTH_CAP + 1, "nested deeper"),
        ("(" * (DEPTH_CAP + 1) + "archived", DEPTH_CAP + 1, "nested deeper"),
    ],
)
def test_an_error_says_where_and_what_was_expected(expression: str, place: int, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_where(expression, now=NOW)

    error = caught.value
    assert said in f"{error.message} {error.hint}"
    assert f"character {place}:" in error.message
    shown, caret = error.details["excerpt"]
    assert shown[len(caret) - 1 : len(caret) + 4] == expression[place - 1 : place + 4]


def test_an_expression_has_a_length() -> None:
    with pytest.raises(UsageError, match="more than"):
        parse_where("version = 1 or " * LENGTH_CAP, now=NOW)


@given(st.text(alphabet="metrics.f1 and or not in()<>=!,`'\"0.9é\x00\u202e", max_size=60))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    excerpt: list[str] = []
    try:
        where = parse_where(text, now=NOW)
    except UsageError as error:
        excerpt = error.details["excerpt"]
    else:
        assert where.matches(known()) in {True, False}
    assert all(line.isprintable() for line in excerpt)
