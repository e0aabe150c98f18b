import json
import random

import pytest
from json_schema import valid

from mlx_platform.core.errors import UsageError
from mlx_platform.evaluation.gate_parser import FILE_KEYS, GATE_KEYS, parse_gates
from mlx_platform.evaluation.gate_schema import gate_schema, schema_text, shipped_schema
from mlx_platform.evaluation.gates import PAIR_METRICS, SYSTEM_METRICS
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import METRICS

SCHEMA = gate_schema()
# What only the parser can see: gates beside each other, and slices that are no combination of `by`.
BEYOND = ("cannot be at least", "must be better", "twice", "no slices are made by")
NAMES = [
    *("accuracy", "f1_macro", "log_loss", "ece", "rmse", "r2", "bias", "mcc", "max_error", "hamming_loss"),
    *("ndcg@5", "recall@3", "recall[spam]", "f1[a]b]", "pinball[0.9]", "pinball[.05]", "roc_auc", "mrr"),
    *PAIR_METRICS,
    *SYSTEM_METRICS,
    *("acuracy", "recall[]", "ndcg@0", "pinball[0.0]", "pinball[2]", "", 3, None),
]
NUMBERS = [0, 0.5, 1, 1.0, 1.5, -0.1, 30, "90%", "100%", "0100.0%", "101%", "7.5%", ".5%", "0%", "-1%", "0.9"]
NUMBERS += ["%", "1e-1", " 5%", True, None, [1], "99999%", "much"]
LOSSES = [
    "1pp",
    "0.5 pp",
    " 1pp ",
    "99.9pp",
    "100pp",
    "0pp",
    "0.00pp",
    ".0pp",
    "0.01pp",
    "1",
    "1%",
    "pp",
    0.01,
]
LOSSES += ["0.01abs", "0.5abs", "1abs", "00.2abs", "250abs", "0abs", "2%rel", "99%rel", "100%rel", "250 %rel"]
LOSSES += ["0%rel", "-1pp", "1 point", "1pp!", None, True, "1e3abs", 0.01]
SLICES = [
    {"by": "lang"},
    {"by": ["lang", ["lang", "device"]], "min_rows": 100, "correct": "holm"},
    {"by": [["a", "b", "c", "d"]], "correct": "none", "require": []},
    {"by": ["lang"], "require": [{"lang": "de"}, {"lang": 3}, {"lang": True}]},
    {"by": []},
    {"by": ""},
    {"by": [["a", "a"]]},
    {"by": [[]]},
    {"by": [["a", "b", "c", "d", "e"]]},
    {"by": [3]},
    {"by": ["lang"], "min_rows": 0},
    {"by": ["lang"], "min_rows": 2.0},
    {"by": ["lang"], "min_rows": 2.5},
    {"by": ["lang"], "correct": "bonferroni"},
    {"by": ["lang"], "require": {"lang": "de"}},
    {"by": ["lang"], "require": [{"lang": None}]},
    {"by": ["lang"], "require": [{}]},
    {"by": ["lang"], "least": 3},
    {"min_rows": 3},
    {},
    "lang",
]
GUARDS = [
    {"max_drop": "2pp"},
    {"max_rise": "5%rel", "baseline": "pinned", "abs_floor": 0.1, "level": "warn"},
    {"max_drop": "2pp", "baseline": "version:3", "level": "fail"},
    {"max_drop": "2pp", "max_rise": "2%rel"},
    {"max_drop": "2"},
    {"baseline": "pinned"},
    {"max_drop": "2pp", "baseline": 3},
    {"max_drop": "2pp", "level": "info"},
    {"max_drop": "2pp", "abs_floor": -1},
    {"max_drop": "2pp", "until": "2030"},
    "pinned",
]
POOL = {
    "metric": NAMES,
    "min": NUMBERS,
    "max": NUMBERS,
    "max_drop": LOSSES,
    "max_rise": LOSSES,
    "max_ratio": [1.1, "110%", 0, "0%", "0.0%", -1, 999.9, 1000, "100000%", "1.1", True],
    "superiority": [True, False, "yes", None, 1],
    "abs_floor": [0, 0.005, -0.1, "0.1", "5%", True],
    "level": ["fail", "warn", "info", None, ["warn"]],
    "slices": SLICES,
    "guard": GUARDS,
    "mim": [0.9],
}
REST = {
    "version": [1, 1.0, 2, "1", True, None],
    "baseline": ["production", "version:3", 3],
    "guard": ["pinned", "", ["pinned"]],
    "defaults": [
        {},
        {"confidence": 0.9, "seed": 7, "on_inconclusive": "fail", "on_missing": "skip"},
        {"confidence": 0.5},
        {"confidence": 1},
        {"confidence": "0.9"},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": 3.5},
        {"seed": True},
        {"on_inconclusive": "skip"},
        {"on_missing": "fail"},
        {"alpha": 0.05},
        [],
    ],
    "dataset": [
        {"path": "a", "id": "b", "label": "c", "weight": "d", "group": "e", "query": "f", "positive": "g"},
        {"sha256": "ab", "min_rows": 3, "disjoint_from": ["x"], "max_overlap": 0},
        {"disjoint_from": "x", "max_overlap": "1%"},
        {"max_overlap": "101%"},
        {"max_overlap": 2},
        {"disjoint_from": [""]},
        {"disjoint_from": [3]},
        {"min_rows": -1},
        {"label": 3},
        {"labels": "c"},
    ],
    "$schema": ["gates.schema.json", 3],
    "gate": [[]],
}


def _parsed(document) -> str:
    try:
        parse_gates(document)
    except UsageError as error:
        return error.message
    return ""


def _disagreement(document) -> str:
    message = _parsed(document)
    if any(part in message for part in BEYOND):
        return ""
    agreed = valid(document, SCHEMA, SCHEMA) is not bool(message)
    return "" if agreed else f"{json.dumps(document)}: {message or 'accepted by the parser alone'}"


def test_the_shipped_schema_is_the_one_that_the_code_makes():
    assert shipped_schema() == schema_text()
    assert set(SCHEMA["properties"]) == set(FILE_KEYS)
    sorts = SCHEMA["$defs"]["gate"]["anyOf"]
    assert set().union(*(sort["properties"] for sort in sorts)) == set(GATE_KEYS)


@pytest.mark.parametrize("metric", NAMES, ids=repr)
def test_the_schema_takes_for_each_metric_what_the_parser_takes(metric):
    for key, values in POOL.items():
        for value in values if key != "metric" else [0.5]:
            gate = {"metric": metric, key: value} if key != "metric" else {"metric": metric, "min": value}
            if key in ("slices", "level", "abs_floor", "guard"):
                for limit in ({"min": 0.5}, {"max_drop": "1pp"}, {"max_rise": "5%rel"}):
                    assert _disagreement({"version": 1, "gates": [gate | limit]}) == ""
            assert _disagreement({"version": 1, "gates": [gate]}) == ""


def test_every_known_metric_can_be_gated_by_the_schema():
    for metric in (*METRICS.values(), Metric("cost", None, "", False, "loss", None, abs)):
        limits = {"max_drop": "1%rel"} if metric.higher_is_better else {"max_rise": "1%rel"}
        gate = {"metric": metric.name, "min": 0.5} | ({} if metric.higher_is_better is None else limits)
        schema = gate_schema({"cost": metric}) if metric.name == "cost" else SCHEMA

        assert valid({"version": 1, "gates": [gate]}, schema, schema), metric.name


def test_the_schema_and_the_parser_agree_about_thousands_of_random_documents():
    draw = random.Random(11)  # noqa: S311 - documents, not secrets
    agreed = accepted = 0
    for _ in range(2000):
        gates = []
        for _gate in range(draw.randrange(1, 3)):
            keys = ["metric", *draw.sample([key for key in POOL if key != "metric"], draw.randrange(1, 4))]
            # Mostly sensible values, so that many documents are right.
            gates.append({key: draw.choice(POOL[key][: draw.choice([2, 5, 100])]) for key in keys})
        document = {"version": 1, "gates": gates}
        for key in draw.sample(list(REST), draw.choice([0, 0, 1, 2])):
            document[key] = draw.choice(REST[key][: draw.choice([1, 2, 100])])
        assert _disagreement(document) == ""
        agreed += 1
        accepted += not _parsed(document)

    assert agreed == 2000
    assert accepted > 60


@pytest.mark.parametrize(
    "document", [None, [], "version = 1", {}, {"version": 1, "gates": {}}, {"version": 1}]
)
def test_documents_of_another_shape_are_judged_alike(document):
    assert _disagreement(document) == ""
