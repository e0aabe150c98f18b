import threading

import numpy as np
import pandas as pd
import pytest
from projects import copy_project, make_template
from receivers import receiving

DRIFT = 'kinds = ["drift"]'


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return make_template(tmp_path_factory.mktemp("notify") / "template")


@pytest.fixture
def project(template, tmp_path, monkeypatch):
    made = copy_project(template, tmp_path / "project")
    monkeypatch.chdir(made.folder)
    rows = np.random.default_rng(1).normal(size=(3000, 4))
    for name, data in {"baseline": rows[:1500], "same": rows[1500:], "moved": rows[1500:] + 1}.items():
        pd.DataFrame(data, columns=list("abcd")).to_parquet(made.folder / f"{name}.parquet")
    pd.DataFrame(rows[:3], columns=list("abcd")).to_parquet(made.folder / "few.parquet")
    return made


@pytest.fixture
def look(project, mlx):
    def run(window, *flags):
        files = ("--baseline", "baseline.parquet", "--traffic", f"{window}.parquet")
        return mlx("drift", "digits/1", *files, "--notify", "--json", *flags)

    return run


def listen(project, receiver, extra=DRIFT):
    (project.folder / "mlx.toml").write_text(receiver.toml(extra=extra))


def test_who_listens_is_told_once_when_it_begins_and_once_when_it_is_over(project, look):
    with receiving() as receiver:
        listen(project, receiver)
        notices = [
            look(window).data["notice"] for window in ("same", "moved", "moved", "few", "same", "same")
        ]

    assert [notice["changed"] for notice in notices] == [False, True, False, False, True, False]
    assert [notice["state"] for notice in notices] == ["ok", "drift", "drift", "drift", "ok", "ok"]
    began, ended = (request.data for request in receiver.requests)
    assert (began["kind"], began["state"], began["before"]) == ("drift", "drift", "ok")
    assert (began["model"], began["version"], began["rows"]) == ("digits", 1, 1500)
    assert {feature["name"] for feature in began["features"]} == set("abcd")
    assert all(feature["verdict"] == "drift" for feature in began["features"])
    assert (ended["state"], ended["before"], ended["features"]) == ("ok", "drift", [])
    assert began["id"] != ended["id"]


def test_drift_in_the_first_window_is_told_and_health_is_not(project, look):
    with receiving() as receiver:
        listen(project, receiver)
        assert look("moved").code == 5

    assert [request.data["before"] for request in receiver.requests] == [None]


def test_who_could_not_be_told_is_told_the_next_time_under_the_same_id(project, look):
    with receiving(503, 204) as receiver:
        listen(project, receiver)
        first, second, third = (look("moved") for _ in range(3))

    assert (first.code, second.code, third.code) == (5, 5, 5)
    assert "to be told the next time: ops: " in first.document["warnings"][-1]
    assert [outcome.data["notice"]["changed"] for outcome in (first, second, third)] == [True, True, False]
    one, other = receiver.requests
    assert one.headers["webhook-id"] == other.headers["webhook-id"]


def test_a_pass_of_which_nobody_could_be_told_is_none(project, look):
    with receiving(204, 503) as receiver:
        listen(project, receiver)
        look("moved")
        outcome = look("same")

    assert (outcome.code, outcome.document["verdict"]) == (9, "pass")


def test_two_looks_at_once_tell_once(project, look):
    from mlx_platform.core.settings import load_settings
    from mlx_platform.core.verdict import Verdict
    from mlx_platform.workflows.context import make_context
    from mlx_platform.workflows.drifting.notify import notify

    told = []

    def tell():
        context = make_context(load_settings(start=project.folder, environment={}))
        version = project.catalog.versions("digits")[-1]
        told.append(notify(context, version, Verdict.FAIL, (), {}).changed)

    with receiving() as receiver:
        listen(project, receiver)
        threads = [threading.Thread(target=tell) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(told) == [False, True]
    assert len(receiver.requests) == 1


def test_without_anybody_to_tell_nothing_is_compared(project, look):
    (project.folder / "mlx.toml").write_text('[[events.sinks]]\nname = "ops"\nurl = "https://example.com/"\n')

    outcome = look("moved")

    assert outcome.code == 2
    assert "nobody to tell of digits" in outcome.document["error"]["message"]
    assert "kinds" in outcome.document["error"]["hint"]


def test_only_a_registered_version_has_a_state_to_tell_of(project, mlx):
    outcome = mlx("drift", "--baseline", "baseline.parquet", "--traffic", "same.parquet", "--notify")

    assert outcome.code == 2
    assert "registered version" in outcome.err
