import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
from linear_models import classifier, colours, pack
from logged import named, with_baseline

from mlx_platform.core.serving_settings import LiveDriftSettings
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package, with_file
from mlx_platform.serving.live_drift import LiveDrift

BASELINE, _ = colours(3000, seed=1)
HEALTHY, _ = colours(900, seed=2)
MOVED = HEALTHY + np.array([0, 1, 0], dtype=np.float32)
SETTINGS = LiveDriftSettings(requests_per_s=100_000, cpu_share=1.0)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    made = pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))
    return with_baseline(made, named(BASELINE))


@pytest.fixture(scope="module")
def model(package):
    return Model.load(package, name="colours", device="cpu")


@pytest.fixture
def watch(package, monkeypatch):
    monkeypatch.setattr("mlx_platform.serving.live_drift._PERIOD", 0.02)
    monkeypatch.setattr("mlx_platform.serving.live_drift._SCORED_EVERY", 0.0)
    monkeypatch.setattr("mlx_platform.serving.live_drift._FIRST", 2000)
    monkeypatch.setattr(LiveDrift, "_adapt", lambda *_: None)  # every request is to be counted here
    watches = []

    def start(package=package, settings=SETTINGS):
        watches.append(LiveDrift(package, settings))
        return watches[-1]

    yield start
    for each in watches:
        each.close()


def exchanges(model, rows, endpoint="predict", **fields):
    for start in range(0, len(rows), 3):
        columns = named(rows[start : start + 3])
        feeds = model.encode(columns)
        tensors = model.run(feeds)
        raw = endpoint == "predict"
        yield SimpleNamespace(
            endpoint=endpoint,
            arm="production",
            identity=None,
            inputs=columns if raw else feeds,
            outputs=model.decode(tensors) if raw else tensors,
            **fields,
        )


def asked(endpoint, arm="production", identity=None):
    return SimpleNamespace(
        endpoint=endpoint, arm=arm, identity=identity, inputs={"x": np.ones(1)}, outputs={}
    )


def gauges(watched):
    return {(sample.name, dict(sample.labels).get("feature")): sample.value for sample in watched.samples()}


def until_counted(watched, rows):
    end = time.monotonic() + 60
    while gauges(watched)["mlx_drift_rows", None] < rows:
        assert time.monotonic() < end, gauges(watched)
        time.sleep(0.01)
    return gauges(watched)


@pytest.mark.parametrize("endpoint", ["predict", "infer"])
def test_the_gauge_of_what_has_moved_rises_and_no_other(watch, model, endpoint):
    healthy, moved = watch(), watch()
    for exchange in exchanges(model, HEALTHY, endpoint):
        healthy.offer(exchange)
    for exchange in exchanges(model, MOVED, endpoint):
        moved.offer(exchange)

    calm, alarmed = until_counted(healthy, 900), until_counted(moved, 900)

    names = {"x0", "x1", "x2", "label", "confidence"}
    assert names <= {feature for name, feature in calm if name == "mlx_drift_psi"}
    assert all(value < 0.1 for (name, _), value in calm.items() if name == "mlx_drift_psi_adjusted")
    assert alarmed["mlx_drift_psi_adjusted", "x1"] > 0.2
    assert alarmed["mlx_drift_psi_adjusted", "x0"] < 0.1
    assert calm["mlx_drift_failures", None] == 0


def test_each_request_of_a_period_has_the_same_chance(package):
    watched = LiveDrift(package, LiveDriftSettings(requests_per_s=50))
    watched._thread = object()  # nobody counts
    watched._most = 50
    chosen = np.zeros(200)
    for _ in range(400):
        watched._kept, watched._seen = [], 0
        for number in range(200):
            watched.offer(
                SimpleNamespace(
                    arm="production", identity=None, endpoint=number, inputs={"x": np.ones(1)}, outputs={}
                )
            )
        assert len(watched._kept) == 50
        chosen[[endpoint for endpoint, *_ in watched._kept]] += 1

    # Each of 200 is expected 100 times with a deviation of 8.7; halves with one of 87 around 10,000.
    assert abs(chosen[:100].sum() - 10_000) < 450
    assert chosen.min() > 55


def test_what_a_request_costs_says_how_many_are_taken(package):
    watched = LiveDrift(package, LiveDriftSettings(requests_per_s=100, cpu_share=0.01))  # for 10 s at a time

    counts = []
    for seconds in (0.00001, 0.001, 0.05, 20.0):
        watched._adapt(seconds)
        counts.append(watched._most)

    assert counts == [1000, 100, 2, 1]


def test_old_requests_leave_the_window(watch, model):
    watched = watch(settings=LiveDriftSettings(window="1s", requests_per_s=100_000, cpu_share=1.0))
    for exchange in exchanges(model, MOVED[:300]):
        watched.offer(exchange)
    until_counted(watched, 300)

    end = time.monotonic() + 60
    while gauges(watched)["mlx_drift_rows", None]:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("content", [b"{}", b"no json"])
def test_a_baseline_that_cannot_be_read_costs_a_warning(watch, package, model, tmp_path, caplog, content):
    copy = shutil.copytree(package.root, tmp_path / "package")
    watched = watch(with_file(open_package(copy), "baseline.json", content))
    for exchange in exchanges(model, HEALTHY[:30]):
        watched.offer(exchange)

    end = time.monotonic() + 60
    while not gauges(watched)["mlx_drift_failures", None]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "cannot be watched live" in caplog.text


def test_large_requests_are_kept_only_as_far_as_there_is_room(package):
    watched = LiveDrift(package, SETTINGS)
    watched._thread = object()  # nobody counts
    large = asked("predict")
    large.inputs = {"x": np.ones(4 * 1024 * 1024)}  # 32 MiB

    for _ in range(5):
        watched.offer(large)

    assert len(watched._kept) == 2
    assert gauges(watched)["mlx_drift_offered", None] == 5


def test_copies_and_answers_of_others_are_not_counted(package):
    watched = LiveDrift(package, SETTINGS)
    for arm, identity in (("shadow", None), ("production", object())):
        watched.offer(
            SimpleNamespace(
                arm=arm, identity=identity, endpoint="predict", inputs={"x": np.ones(1)}, outputs={}
            )
        )

    assert gauges(watched)["mlx_drift_offered", None] == 0
