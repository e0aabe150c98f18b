from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from linear_models import classifier, colours, pack, regressor, write_rows

from mlx_platform.core.report import Result
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.evaluation.gates import DatasetRules
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.evaluate import evaluate

GATES = """version = 1
[dataset]
weight = "weight"
[[gates]]
metric = "accuracy"
min = 0.2
[[gates]]
metric = "accuracy"
max_drop = "1pp"
[[gates]]
metric = "log_loss"
max_rise = "5%rel"
[[gates]]
metric = "accuracy"
min = 0.6
slices = {by = ["lang"], min_rows = 30}
[[gates]]
metric = "accuracy"
max_drop = "5pp"
level = "warn"
slices = {by = ["device"], min_rows = 30}
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """An evaluation of every task, with reports below `folder`; of unregistered packages, which is faster."""
    folder = tmp_path_factory.mktemp("outcomes")
    settings = Settings(folder=folder, actor="tester", cache=CacheSettings(dir=str(folder / "cache")))
    context = make_context(settings)

    def run(name: str, package: Path, data: Path, **told: object) -> Result:
        places = {"report": folder / name, "metrics": folder / name / "metrics.txt"}
        return evaluate(context, str(package), data=data, **places, **told)  # type: ignore[arg-type]

    return {name: make(folder / f"{name}-work", run) for name, make in MAKERS.items()}


Run = Callable[..., Result]


def _spam(folder: Path, run: Run) -> Result:
    weights = np.array([[2.0, -2.0], [0.0, 0.0]])
    old = pack(classifier(folder / "old", weights, labels=("ham", "spam"))).root
    new = pack(
        classifier(folder / "new", weights + np.array([[0, 0], [1.5, -1.5]]), labels=("ham", "spam"))
    ).root
    draw = np.random.default_rng(0)
    features = draw.normal(size=(900, 2)).astype(np.float32)
    spam = draw.random(900) < 1 / (1 + np.exp(4 * features[:, 0]))
    langs = np.where(np.arange(900) < 10, "xx", draw.choice(["de", "en", "fr"], 900))
    spam ^= langs == "de"
    data = write_rows(
        folder / "mail.parquet",
        features,
        label=np.where(spam, "spam", "ham").tolist(),
        id=[f"mail-{index}" for index in range(900)],
        lang=langs.tolist(),
        device=draw.choice(["phone", "desktop"], 900).tolist(),
        weight=(draw.random(900) + 0.5).tolist(),
    )
    (folder / "gates.toml").write_text(GATES)
    return run("spam", new, data, against=str(old), gates=folder / "gates.toml", slices=("lang,device",))


def _colours(folder: Path, run: Run) -> Result:
    package = pack(classifier(folder / "colours", 5 * np.eye(3))).root
    features, codes = colours(400)
    data = write_rows(
        folder / "rows.parquet", features, label=[("red", "green", "blue")[code] for code in codes]
    )
    return run("colours", package, data, gate_expressions=("recall[red]>=0.1",))


def _lengths(folder: Path, run: Run) -> Result:
    package = pack(regressor(folder / "lengths", np.ones((3, 1)))).root
    features, _codes = colours(400)
    truth = features.sum(axis=1) + np.random.default_rng(1).normal(0, 0.1, 400)
    data = write_rows(folder / "rows.parquet", features, label=truth.tolist(), house=np.arange(400) // 4)
    told = DatasetRules(group="house")
    return run("lengths", package, data, gate_expressions=("rmse<=0.2",), columns=told)


def _queries(folder: Path, run: Run) -> Result:
    package = pack(regressor(folder / "ranker", np.array([[1.0], [0.0], [0.0]]))).root
    features, _codes = colours(400)
    relevant = (features[:, 0] + np.random.default_rng(2).normal(0, 1, 400) > 0.5).astype(float)
    data = write_rows(
        folder / "rows.parquet", features, label=relevant, q=[f"query {row // 10}" for row in range(400)]
    )
    return run("queries", package, data, gate_expressions=("mrr>=0.1",), columns=DatasetRules(query="q"))


def _tags(folder: Path, run: Run) -> Result:
    source = classifier(folder / "tags", 5 * np.eye(3))
    text = (source / "model.toml").read_text().partition("[[post]]")[0]
    steps = '[[post]]\nstep = "threshold"\nthresholds = [0.34, 0.34, 0.9]\n'
    (source / "model.toml").write_text(text.replace('"classification"', '"multilabel"') + steps)
    features, codes = colours(200)
    truth = [["red", "green", "red|blue"][code] for code in codes]
    data = write_rows(folder / "rows.parquet", features, label=truth)
    return run("tags", pack(source).root, data, gate_expressions=("f1_micro>=0.1",))


MAKERS = {"spam": _spam, "colours": _colours, "lengths": _lengths, "queries": _queries, "tags": _tags}
