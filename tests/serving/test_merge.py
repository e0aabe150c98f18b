import subprocess

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from services import debian_program

from mlx_platform.serving.merge import merge


@pytest.fixture
def page():
    def make(count, extra=False):
        registry = CollectorRegistry()
        Counter("runs", "Runs.", ("model",), registry=registry).labels('a"}\\ b').inc(count)
        Gauge("ready", "Is it?", registry=registry).set(1)
        histogram = Histogram("took_seconds", "Time.", registry=registry, buckets=(1, 2))
        for _ in range(count):
            histogram.observe(1.5)
        if extra:
            Gauge("heat_celsius", "Of the second only.", registry=registry).set(40)
        return generate_latest(registry)

    return make


def samples(page):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_every_sample_says_whose_it_is_and_keeps_its_value(page):
    pages = {"0": page(3), "1": page(5, extra=True)}
    merged = samples(merge(pages))
    for worker, own in pages.items():
        for (name, *labels), value in samples(own).items():
            assert merged[(name, *sorted([*labels, ("worker", worker)]))] == value
    assert len(merged) == sum(len(samples(own)) for own in pages.values())


def test_a_family_stands_together_under_one_head(page):
    merged = merge({"0": page(3), "1": page(5, extra=True)})
    assert merged.count(b"# TYPE took_seconds histogram") == 1
    check = [debian_program("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(check, input=merged, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_processes_that_disagree_about_a_help_text_are_no_error(page):
    other = page(1).replace(b"Runs.", b"All the runs.")
    merged = merge({"0": page(1), "1": other})
    assert merged.count(b"# HELP runs_total") == 1
    assert len(samples(merged)) == 2 * len(samples(page(1)))


def test_nobody_exposes_nothing():
    assert merge({}) == b""
    assert merge({"0": b""}) == b""
