import json

import numpy as np
import pandas as pd
import pytest

from mlx_platform.workflows.drifting import evidently


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name, shift in (("baseline", 0.0), ("window", 1.0)):
        columns = {
            "age": generator.normal(40 + 10 * shift, 10, 2000),
            "country": generator.choice(["DE", "FR", "US"], 2000, p=[0.5, 0.3, 0.2]),
        }
        pd.DataFrame(columns).to_parquet(f"{name}.parquet")
    return ("--baseline", "baseline.parquet", "--traffic", "window.parquet")


def test_evidentlys_page_lies_in_the_report_and_its_scores_beside_ours(rows, mlx, tmp_path):
    outcome = mlx("drift", *rows, "--report", "report", "--evidently", "--json")

    assert outcome.code == 5
    found = outcome.data["evidently"]
    assert found["rows"] == {"baseline": 2000, "window": 2000}
    ours = {feature["name"]: feature["psi"] for feature in outcome.data["features"]}
    assert found["psi"]["country"] == pytest.approx(ours["country"], abs=0.001)
    assert found["psi"]["age"] > 0.5
    assert (tmp_path / "report" / "evidently.html").stat().st_size > 100_000
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Beside Evidently, on 2,000 rows of the baseline and 2,000 of the window" in page
    assert "equal widths over both sides there" in page


def test_what_evidently_cannot_do_takes_nothing_from_what_was_found(rows, mlx, monkeypatch):
    monkeypatch.setattr(evidently, "_SCRIPT", "mlx_platform.no_such_module")

    outcome = mlx("drift", *rows, "--report", "report", "--evidently", "--json")

    assert (outcome.code, outcome.document["verdict"]) == (5, "fail")
    assert "There is no report of Evidently" in outcome.document["warnings"][-1]
    assert "no_such_module" in outcome.document["warnings"][-1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--evidently",), "--report DIR"),
        (("--evidently", "--report", "r", "--baseline", "profile.json"), "--baseline FILE"),
    ],
)
def test_it_needs_a_folder_and_rows(rows, mlx, tmp_path, flags, said):
    (tmp_path / "profile.json").write_text(json.dumps({}))

    outcome = mlx("drift", *rows, *flags)

    assert outcome.code == 2
    assert said in outcome.err
