"""A registered version inside your own process: the same code path as evaluation and the server.

Run it in the folder that `mlx demo` made:

    cd mlx-demo && python ../examples/embedded.py
"""

import pyarrow.parquet as pq

import mlx_platform


def main() -> None:
    model = mlx_platform.load("digits@production")
    rows = pq.read_table("data/test.parquet").slice(0, 5)
    answers = model.predict(rows.drop_columns(["label"]).to_pylist())
    print(f"{model.name}/{model.version}, digest {model.digest[:12]}")
    for truth, label, confidence in zip(
        rows["label"].to_pylist(), answers.columns["label"], answers.columns["confidence"], strict=True
    ):
        print(f"  written {truth}, read {label} with {confidence:.0%}")


if __name__ == "__main__":
    main()
