"""Nights as a scheduler brings them about, on a real registry and a real log."""

import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import orjson
import pytest
from answered import wrong_answer
from colour_project import DAY, MOVED, ColourProject, damage

from mlx_platform.core.errors import IntegrityError, UnavailableError, UsageError
from mlx_platform.core.files import file_lock
from mlx_platform.core.report import Result
from mlx_platform.core.verdict import Verdict
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.nightly import check_nights
from mlx_platform.workflows.nights.look import Request


def run(project: ColourProject, ref: str = "colours@production", **more: object) -> Result:
    shown = {key: more.pop(key) for key in ("slices", "show_values") if key in more}
    asked = Request(ref, project.folder / "traffic", **shown)  # type: ignore[arg-type]
    return check_nights(project.context, asked, last="1d", **more)  # type: ignore[arg-type]


def after(moment: datetime):
    """Alter what was answered from a moment on."""
    return lambda record: wrong_answer(record) if record.time >= moment else None


def test_a_clean_night_passes_and_is_kept(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1")
    report = project.folder / "nightly"

    result = run(project, report=report)

    assert result.verdict is Verdict.PASS
    assert result.data["night"]["key"] == "2026-03-08"
    assert result.data["requests"]["compared"] == 400
    files = {path.name for path in (report / "nights" / "2026-03-08").iterdir()}
    assert files == {"report.html", "report.json", "junit.xml", "night.json"}
    assert (report / "report.html").read_text().count("2026-03-08") > 1
    assert project.context.catalog.evidence(project.context.catalog.resolve("colours/1")).keys() == {
        "consistency"
    }


def test_mismatches_that_begin_at_a_deploy_are_told_with_it(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    project.promote(2, MOVED)
    traffic("colours/1", 400, until=MOVED)
    traffic("colours/2", 200, since=MOVED, first=1000, change=after(MOVED + timedelta(minutes=12)))

    result = run(project)

    assert result.verdict is Verdict.FAIL
    assert [check.part for check in result.report.checks] == ["", "colours/1", "colours/2"]
    assert result.report.checks[1].verdict is Verdict.PASS
    (cluster,) = result.data["clusters"]
    assert (cluster["version"], cluster["stage"], cluster["outputs"]) == (
        "colours/2",
        "output",
        ["confidence"],
    )
    assert cluster["begins_with"] == "12m after: production moved from 1 to 2 (promote)"
    assert "12m after: production moved from 1 to 2" in result.report.summary


def test_versions_of_one_night_with_little_traffic_each_are_judged_together(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    project.promote(2, MOVED)
    traffic("colours/1", 200, until=MOVED)
    traffic("colours/2", 200, since=MOVED, first=1000)

    result = run(project)

    assert result.verdict is Verdict.PASS
    assert [bool(check.skipped) for check in result.report.checks] == [False, True, True]
    assert result.report.checks[0].measured.startswith("100.0000% of 400 requests")


def test_a_version_that_answered_nothing_yet_is_not_what_the_night_is_about(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    project.promote(2, DAY + timedelta(hours=23, minutes=59))
    traffic("colours/1", 400)

    result = run(project)

    assert (result.verdict, result.data["model"]["ref"]) == (Verdict.PASS, "colours/1")
    assert [one["ref"] for one in result.data["versions"]] == ["colours/2"]
    assert result.report.summary.startswith("100.00% of 400 requests to colours/1 and colours/2 agree.")


def test_a_restart_of_a_server_is_a_deploy(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    again = DAY + timedelta(hours=10)
    traffic("colours/1", 300, until=again)
    traffic("colours/1", 300, since=again, first=1000, boot_id="c", change=after(again))

    (cluster,) = run(project).data["clusters"]

    assert cluster["begins_with"] == "0s after: first answer of a new process of web-1"


def test_a_kind_of_mismatch_is_first_seen_in_the_night_that_first_had_it(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    first = DAY + timedelta(hours=20)
    traffic("colours/1", change=after(first))
    traffic(
        "colours/1",
        since=DAY + timedelta(days=1),
        until=DAY + timedelta(days=2),
        first=1000,
        change=after(first),
    )
    report = project.folder / "nightly"
    run(project, report=report)
    project.now += timedelta(days=1)

    (cluster,) = run(project, report=report).data["clusters"]

    assert cluster["first_seen_ever"] == "2026-03-08T20:02:24Z"
    assert (cluster["first_seen"][:10], cluster["first_night"]) == ("2026-03-09", "2026-03-08")


def test_missed_nights_get_a_report_each_and_count_in_the_verdict(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    wrong_day = DAY + timedelta(days=2)
    for day in range(5):
        since = DAY + timedelta(days=day)
        change = wrong_answer if since == wrong_day else None
        traffic(
            "colours/1", 300, since=since, until=since + timedelta(days=1), first=1000 * day, change=change
        )
    report = project.folder / "nightly"
    assert (
        run(project, report=report, catch_up=7).report.checks[-1].part == ""
    )  # nothing was missed before the first
    project.now += timedelta(days=4)

    result = run(project, report=report, catch_up=3)

    kept = sorted(path.name for path in (report / "nights").iterdir())
    assert kept == [f"2026-03-{day:02d}" for day in range(8, 13)]
    missed = {check.part: check.verdict for check in result.report.checks if check.part}
    assert missed == {
        "night 2026-03-09": Verdict.PASS,
        "night 2026-03-10": Verdict.FAIL,
        "night 2026-03-11": Verdict.PASS,
    }
    assert (result.data["night"]["key"], result.exit_code) == ("2026-03-12", 5)
    assert [night["verdict"] for night in result.data["trend"]] == ["pass", "pass", "fail", "pass", "pass"]
    assert run(project, report=report, catch_up=3).exit_code == 0  # none is missed any more


def test_a_missed_night_that_cannot_be_looked_at_keeps_nobody_from_the_newest(project, traffic, monkeypatch):
    project.promote(1, DAY - timedelta(days=3))
    for day in range(3):
        since = DAY + timedelta(days=day)
        traffic("colours/1", 300, since=since, until=since + timedelta(days=1), first=1000 * day)
    report = project.folder / "nightly"
    run(project, report=report)
    project.now += timedelta(days=2)
    from mlx_platform.workflows import nightly

    def look(context, asked, night):
        if night.key == "2026-03-09":
            raise UsageError("This night is broken.")
        return real(context, asked, night)

    real = nightly.look_at
    monkeypatch.setattr(nightly, "look_at", look)

    result = run(project, report=report, catch_up=3)

    assert (result.verdict, result.data["night"]["key"]) == (Verdict.ERROR, "2026-03-10")
    assert result.report.checks[-1].message == "This night is broken."
    assert not (report / "nights" / "2026-03-09").exists()


def test_an_empty_night_is_undecided(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1", since=DAY - timedelta(days=2), until=DAY - timedelta(days=1))

    assert run(project).exit_code == 7


def test_slices_tell_replicas_hours_and_inputs_apart(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1", 300)
    traffic("colours/1", 300, first=1000, server="web-2", change=wrong_answer)

    result = run(project, slices=("x0",))

    slices = result.data["slices"]["colours/1"]
    assert [(row["value"], row["agreement"]) for row in slices["replica"]] == [("web-2", 0.0), ("web-1", 1.0)]
    assert len(slices["hour"]) == 24
    assert sum(row["compared"] for row in slices["x0"]) == 600
    assert "arm" not in slices


def test_what_people_sent_is_shown_only_when_asked_for(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1", change=wrong_answer)
    report = project.folder / "nightly"

    masked = run(project, report=report).data["worst"]
    page = (report / "report.html").read_text()
    shown = run(project, report=report, show_values=True).data["worst"]

    assert len(masked) == len(shown) == 20
    assert masked[0]["inputs"] == dict.fromkeys(("x0", "x1", "x2"), "float64 1")
    assert "values" not in masked[0]
    sent = shown[0]["values"]["inputs"]["x0"]
    assert sent not in page
    assert sent in (report / "report.html").read_text()


def test_the_worst_examples_come_first(project, traffic):
    project.promote(1, DAY - timedelta(days=3))

    def change(record: Record) -> Record | None:
        number = int(record.request_id.removeprefix("r-"))
        if number % 10 or not number:
            return None
        told = record.outputs["confidence"]
        data = [cell + number for cell in told["data"]]
        return replace(record, outputs={**record.outputs, "confidence": {**told, "data": data}})

    traffic("colours/1", change=change)

    worst = run(project).data["worst"]

    assert [one["request_id"] for one in worst[:2]] == ["r-390", "r-380"]


def test_an_earlier_version_whose_package_is_damaged_is_an_error_and_the_other_is_judged(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    project.promote(2, MOVED)
    traffic("colours/1", 400, until=MOVED)
    traffic("colours/2", 400, since=MOVED, first=1000)
    damage(project, "colours/1")

    result = run(project)

    assert (result.verdict, result.exit_code) == (Verdict.ERROR, 7)
    verdicts = {check.part: check.verdict for check in result.report.checks}
    assert verdicts == {"": Verdict.PASS, "colours/2": Verdict.PASS, "colours/1": Verdict.ERROR}


def test_a_damaged_package_of_the_last_version_is_told_as_such(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1", 10)
    damage(project, "colours/1")

    with pytest.raises(IntegrityError):
        run(project)


@pytest.mark.parametrize("ref", ["colours/1", "colours@production"])
def test_a_folder_takes_the_nights_of_one_model_only(project, traffic, ref):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1")
    report = project.folder / "nightly"
    run(project, ref, report=report)
    path = report / "nights" / "2026-03-08" / "night.json"
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"model": "shapes"}))

    with pytest.raises(UsageError, match="the nights of shapes"):
        run(project, ref, report=report)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"model": 3', b"\xff" * 10])
def test_an_account_of_a_night_that_cannot_be_read_is_left_out_and_told(project, traffic, content):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1")
    broken = project.folder / "nightly" / "nights" / "2026-03-01" / "night.json"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(content)

    result = run(project, report=project.folder / "nightly", catch_up=3)

    assert result.verdict is Verdict.PASS
    assert str(broken) in result.warnings[0]


def test_catching_up_needs_a_folder_that_says_what_was_missed(project, traffic):
    with pytest.raises(UsageError, match="without a report"):
        run(project, catch_up=3)


def test_a_second_run_in_one_folder_is_refused_and_told_who_is_at_work(project, traffic, mlx, monkeypatch):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1", 10)
    monkeypatch.chdir(project.folder)
    command = ["consistency", "colours/1", "--traffic", "traffic", "--last", "1d", "--report", "nightly"]
    with file_lock(Path("nightly/.lock"), timeout=0, purpose="x", holder="process 7 of web-1"):
        outcome = mlx(*command)

    assert outcome.code == 9
    assert "checking for nightly: process 7 of web-1" in outcome.err
    assert not Path("nightly/report.html").exists()


_KILLED = """
import os, sys, time
from pathlib import Path
from mlx_platform.core.files import file_lock, staged_folder
report = Path(sys.argv[1])
with file_lock(report / ".lock", timeout=0, purpose="x", holder="somebody"):
    with staged_folder(report / "nights" / "2026-03-08") as folder:
        (folder / "report.html").write_text("half")
        print("there", flush=True)
        time.sleep(60)
"""


def test_a_killed_run_leaves_no_half_report_and_no_lock(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1")
    report = project.folder / "nightly"
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(report)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        with pytest.raises(UnavailableError, match="somebody"):
            run(project, report=report)
        process.kill()
    assert not (report / "nights" / "2026-03-08").exists()

    assert run(project, report=report).verdict is Verdict.PASS
    assert [path.name for path in (report / "nights").iterdir()] == ["2026-03-08"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--last", "1d", "--since", "3h"], "names the window already"),
        (["--catch-up", "3"], "need --last"),
        (["--show-values"], "needs --last or --request-id"),
        (["--last", "1w"], "no span of time"),
        (["--last", "1d", "--zone", "Mars/Base"], "Mars/Base"),
        (["--last", "1d", "--catch-up", "3"], "without a report"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_a_sentence(project, mlx, options, said):
    outcome = mlx("consistency", "colours/1", "--traffic", project.folder, *options)

    assert outcome.code == 2
    assert said in outcome.err


def test_a_folder_that_cannot_be_written_takes_nothing_from_a_failure(project, traffic):
    project.promote(1, DAY - timedelta(days=3))
    traffic("colours/1", change=wrong_answer)
    report = project.folder / "nightly"
    report.mkdir()
    (report / "nights").write_text("a file in the way")

    result = run(project, report=report)

    assert result.exit_code == 5
    assert any("nights" in warning for warning in result.warnings)
