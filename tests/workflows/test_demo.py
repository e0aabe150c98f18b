"""The whole loop, once, and everything that it leaves behind."""

from pathlib import Path

import orjson
import pytest
from support import Demo, RunCommand, run_process


def test_every_step_is_told_with_the_command_that_repeats_it(demo: Demo) -> None:
    steps = demo.outcome.data["steps"]

    assert len(steps) >= 15
    assert all(step["command"] and step["outcome"] for step in steps)
    for step in steps:
        assert f"$ {step['command']}" in demo.outcome.err


def test_everything_lands_in_the_folder(demo: Demo) -> None:
    for name in (
        "mlx.toml",
        "mlx.db",
        "mlx-artifacts",
        "data/train.parquet",
        "data/calibration.parquet",
        "data/test.parquet",
        "traffic",
        "reports/drift/report.html",
        "reports/consistency/report.json",
        "reports/quantization/junit.xml",
    ):
        assert (demo.folder / name).exists(), name


def test_production_is_the_version_that_served_the_traffic(demo: Demo) -> None:
    production = demo.run("resolve", "digits@production", "--json").data
    served = {path.parts[-4] for path in (demo.folder / "traffic").rglob("*.parquet")}

    assert production["version"] == 2
    assert {part for part in served if part.startswith("version=")} == {"version=2"}


def test_history_tells_the_story_with_reasons_and_the_override(demo: Demo) -> None:
    events = demo.run("history", "digits", "--alias", "production", "--json").data["events"]

    assert [event["to_version"] for event in events] == [2, 4, 2, 1]
    assert events[0]["kind"] == "rollback"
    assert "incident" in events[1]["reason"]


def test_the_quantized_version_is_linked_to_its_source_and_smaller(demo: Demo) -> None:
    document = orjson.loads((demo.folder / "reports/quantization/report.json").read_bytes())
    version = demo.run("show", "digits/3", "--json").data

    assert document["verdict"] == "pass"
    assert document["data"]["size"]["ratio"] < 0.5
    assert version["parent"] == "digits/2"


def test_drift_names_the_rotated_digits_and_consistency_agrees(demo: Demo) -> None:
    drift = orjson.loads((demo.folder / "reports/drift/report.json").read_bytes())
    consistency = orjson.loads((demo.folder / "reports/consistency/report.json").read_bytes())

    assert (drift["verdict"], drift["exit_code"]) == ("fail", 5)
    assert (consistency["verdict"], consistency["exit_code"]) == ("pass", 0)
    assert consistency["data"]["agreement"]["request"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list"], 0),
        (["list", "digits"], 0),
        (["show", "digits@production"], 0),
        (["show", "digits@production~1"], 0),
        (["resolve", "models:/digits@production"], 0),
        (["history", "digits"], 0),
        (["eval", "digits@production", "--data", "data/test.parquet"], 0),
        (["eval", "digits/4", "--data", "data/test.parquet"], 5),
        (["drift", "digits@production", "--traffic", "traffic"], 5),
        (["drift", "digits@production", "--traffic", "data/train.parquet"], 0),
        (["consistency", "digits@production", "--traffic", "traffic"], 0),
        (["consistency", "digits/1", "--traffic", "traffic"], 7),
        (["promote", "digits/2", "--to", "production"], 0),
        (["promote", "digits/4", "--to", "production"], 5),
        (["promote", "digits/3", "--to", "production", "--expect", "1"], 4),
    ],
)
def test_a_user_goes_on_in_the_folder_with_any_command(
    demo: Demo, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.chdir(demo.folder)
    outcome = mlx(*arguments)

    assert outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out.strip() or outcome.err.strip()


def test_a_version_loads_into_a_process_of_the_users_own(demo: Demo) -> None:
    import pyarrow.parquet as pq

    import mlx_platform

    model = mlx_platform.load("digits@production", config=demo.folder / "mlx.toml")
    table = pq.read_table(demo.folder / "data/test.parquet")
    answers = model.predict(table.drop_columns(["label"]).to_pandas())
    right = sum(
        int(answer) == truth
        for answer, truth in zip(answers.columns["label"], table["label"].to_pylist(), strict=True)
    )

    assert right / table.num_rows > 0.9


def test_a_second_demo_keeps_the_folder_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "mlx-demo").mkdir()
    (tmp_path / "mlx-demo" / "notes.txt").write_text("mine")

    outcome = run_process(["demo"], cwd=tmp_path, env={"HOME": str(tmp_path)})

    assert outcome.code == 0, outcome.err
    assert (tmp_path / "mlx-demo.1" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "mlx-demo" / "mlx.toml").is_file()
