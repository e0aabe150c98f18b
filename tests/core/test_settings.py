import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.settings import FILE_CAP, load_settings


def write(folder: Path, text: str) -> Path:
    path = folder / "mlx.toml"
    path.write_text(text)
    return path


def test_without_a_file_the_defaults_start_in_the_working_folder(tmp_path: Path) -> None:
    settings = load_settings(environment={}, start=tmp_path)

    assert settings.registry.uri == "sqlite:///mlx.db"
    assert settings.path(settings.registry.artifacts) == tmp_path / "mlx-artifacts"
    assert settings.promotion["production"].needs == ("evaluation",)


def test_the_nearest_file_above_is_found_and_its_folder_anchors_paths(tmp_path: Path) -> None:
    write(tmp_path, '[cache]\ndir = "cache"')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    settings = load_settings(environment={}, start=below)

    assert settings.path(settings.cache.dir) == tmp_path / "cache"


def test_flags_beat_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[serving]\nport = 1\nmax_batch_size = 1\nmax_rows = 1")
    environment = {"MLX_SERVING_PORT": "2", "MLX_SERVING_MAX_BATCH_SIZE": "2"}

    serving = load_settings(path, environment, {"serving.port": 3, "serving.admin_port": None}).serving

    assert (serving.port, serving.max_batch_size, serving.max_rows, serving.admin_port) == (3, 2, 1, 0)


def test_mlflow_variables_are_a_default_that_the_file_overrides(tmp_path: Path) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://tracking:5000"}

    assert load_settings(environment=environment, start=tmp_path).registry.uri == "http://tracking:5000"

    path = write(tmp_path, '[registry]\nuri = "sqlite:///own.db"')

    assert load_settings(path, environment).registry.uri == "sqlite:///own.db"
    assert (
        load_settings(path, environment | {"MLX_REGISTRY": "sqlite:///env.db"}).registry.uri
        == "sqlite:///env.db"
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[servng]\nport = 1", "unknown key 'servng'", "Did you mean 'serving'?"),
        ("[serving]\nprot = 1", "unknown key 'serving.prot'", "Did you mean 'port'?"),
        (
            "[promotion.production]\nneed = []",
            "unknown key 'promotion.production.need'",
            "Did you mean 'needs'?",
        ),
        (
            '[promotion.production]\nneeds = ["drft"]',
            "promotion.production.needs.0 = 'drft' is not possible",
            "",
        ),
        ("[serving]\nport = 70000", "serving.port = 70000 is not possible", ""),
        ("[serving]\nport = 'x'", "serving.port = 'x' is not possible", ""),
        ("not toml", "no valid TOML", ""),
        ("a = " + "9" * 5000, "no valid TOML", ""),
        ("registry = 1", "registry = 1 is not possible: it is a table", ""),
        ("a = " + "[" * 30 + "]" * 30, "nested deeper", ""),
    ],
)
def test_a_wrong_file_is_named_with_the_key_and_the_closest_known_one(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(write(tmp_path, text), {})

    assert message in caught.value.message
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint == hint


def test_where_the_file_lies_cannot_be_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown key 'folder'"):
        load_settings(write(tmp_path, "folder = '/'"), {})


def test_a_wrong_value_is_blamed_on_where_it_was_set(tmp_path: Path) -> None:
    path = write(tmp_path, "[serving]\nport = 1")

    with pytest.raises(UsageError, match=r"the environment: serving\.port = 'x'"):
        load_settings(path, {"MLX_SERVING_PORT": "x"})
    with pytest.raises(UsageError, match=r"the environment: unknown key 'serving\.prot'"):
        load_settings(path, {"MLX_SERVING_PROT": "1"})
    with pytest.raises(UsageError, match=r"the command line: serving\.port = -1"):
        load_settings(path, {}, {"serving.port": -1})


def test_a_file_at_the_cap_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    load_settings(write(tmp_path, "#" * FILE_CAP), {})

    with pytest.raises(UsageError, match="larger than 256 KiB"):
        load_settings(write(tmp_path, "#" * (FILE_CAP + 1)), {})


def test_a_file_that_was_named_and_is_missing_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        load_settings(tmp_path / "other.toml", {})


def test_naming_one_alias_keeps_the_policy_of_the_others(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, '[promotion.champion]\nneeds = ["consistency"]'), {})

    assert settings.promotion["production"].needs == ("evaluation",)
    assert settings.promotion["champion"].needs == ("consistency",)


def test_settings_cannot_be_changed_after_they_were_read(tmp_path: Path) -> None:
    settings = load_settings(environment={}, start=tmp_path)

    with pytest.raises(FrozenInstanceError):
        settings.actor = "somebody"  # type: ignore[misc]


@pytest.mark.parametrize("text", ["1", "1w", "soon", "-1d", "1d\n"])
@pytest.mark.parametrize("key", ["min_age", "max_evidence_age"])
def test_an_age_of_a_policy_is_a_span_of_time(tmp_path: Path, key: str, text: str) -> None:
    content = f"[promotion.production]\n{key} = {json.dumps(text)}"

    with pytest.raises(UsageError, match=f"promotion.production.{key} = .* is not possible.*such as"):
        load_settings(write(tmp_path, content), {})

    good = load_settings(write(tmp_path, f'[promotion.production]\n{key} = "12h"'), {})
    assert getattr(good.promotion["production"], key) == "12h"


def test_sinks_of_events_come_from_the_file_only(tmp_path: Path) -> None:
    path = write(tmp_path, '[[events.sinks]]\nname = "ops"\nurl = "https://a.b/"\nheaders_env = {X = "Y"}')

    (sink,) = load_settings(path, {"MLX_EVENTS_SECRET": "not a setting"}).events.sinks

    assert (sink.name, sink.kind, sink.headers_env, sink.models) == ("ops", "webhook", {"X": "Y"}, ("*",))
    assert load_settings(environment={"MLX_EVENTS_SINKS": "x"}, start=tmp_path / "..").events.sinks == ()


@pytest.mark.parametrize("line", ['name = "a/b"', 'kind = "mail"', "timeout = 0", "max_attempts = 0"])
def test_impossible_values_of_a_sink_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match="is not possible"):
        load_settings(write(tmp_path, f"[[events.sinks]]\n{line}"), environment={})


def test_naming_one_key_of_a_policy_keeps_the_others(tmp_path: Path) -> None:
    young = load_settings(write(tmp_path, '[promotion.production]\nmin_age = "1d"'), {})
    assert young.promotion["production"].needs == ("evaluation",)
    nothing = load_settings(write(tmp_path, "[promotion.production]\nneeds = []"), {})
    assert nothing.promotion["production"].needs == ()


def test_a_path_is_written_as_seen_from_the_settings_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "mlx.toml").touch()
    settings = load_settings(start=tmp_path / "project", environment={})
    monkeypatch.chdir(tmp_path)

    assert settings.written(Path("project/data/rows.csv")) == "data/rows.csv"
    assert (
        settings.path(settings.written(Path("project/data/rows.csv"))) == tmp_path / "project/data/rows.csv"
    )
    assert settings.written(tmp_path / "rows.csv") == str(tmp_path / "rows.csv")


def test_a_plan_of_a_rollout_is_read_with_its_steps_and_metrics(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [rollout]
        look_every = "500ms"
        steps = [{shadow = 50, max_duration = "1h30m"}, {pause = "manual"}]
        metrics = [{name = "clicked", kind = "business", max_drop = 0.01}]
        [rollout.ab]
        metric = "clicked"
        """,
    )
    rollout = load_settings(path, {"MLX_ROLLOUT_AB_PERCENT": "20", "MLX_ROLLOUT_ON_FAIL": "pause"}).rollout

    assert [(step.shadow, step.pause) for step in rollout.steps] == [(50.0, None), (None, "manual")]
    assert rollout.metrics[0].max_drop == 0.01
    assert (rollout.ab.metric, rollout.ab.percent, rollout.on_fail) == ("clicked", 20.0, "pause")
    for wrong in (
        "look_every = '5 minutes'",
        "steps = [{wait = 5}]",
        "metrics = [{name = 'x', max_ratio = 1}]",
    ):
        with pytest.raises(UsageError):
            load_settings(write(tmp_path, f"[rollout]\n{wrong}"), {})
