"""A regression model from scikit-learn to a gated promotion, through the same workflows as the commands.

Run it in an empty folder:

    python regression.py
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skops.io
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mlx_platform.core.settings import load_settings
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.evaluate import evaluate
from mlx_platform.workflows.init import initialize
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.register import register


def main() -> None:
    bunch = load_diabetes()
    rows = pa.table(dict(zip(bunch.feature_names, bunch.data.T, strict=True)) | {"label": bunch.target})
    pq.write_table(rows.slice(0, 300), "train.parquet")
    pq.write_table(rows.slice(300), "test.parquet")
    model = make_pipeline(StandardScaler(), Ridge(alpha=1.0)).fit(bunch.data[:300], bunch.target[:300])
    skops.io.dump(model, "model.skops")

    context = make_context(load_settings())
    initialize(context)
    registered = register(
        context,
        "progression",
        Path("model.skops"),
        dataset_version="diabetes-300",
        params={"alpha": "1.0"},
        metrics={},
        git_commit="",
        golden=None,
        baseline=Path("train.parquet"),
        if_exists="reuse",
    )
    print(registered.report.summary)
    judged = evaluate(
        context,
        f"progression/{registered.data['version']}",
        data=Path("test.parquet"),
        against=None,
        gates=None,
        gate_expressions=("rmse<=65", "r2>=0.3"),
        label=None,
        report=Path("report"),
        junit=None,
    )
    print(judged.report.summary)
    moved = promote(
        context,
        f"progression/{registered.data['version']}",
        to="production",
        expect="none",
        reason="first version",
        override=(),
    )
    print(moved.report.summary)


if __name__ == "__main__":
    main()
