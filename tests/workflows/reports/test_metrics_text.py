import math

import pytest
from hostile import MARKUP
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from mlx_platform.core.report import Gauge
from mlx_platform.workflows.reports.metrics_text import metrics_text


def samples(*gauges: Gauge) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics_text(gauges))
    return {(one.name, tuple(one.labels.items())): one.value for family in families for one in family.samples}


def test_a_parser_of_openmetrics_reads_names_labels_and_values_back() -> None:
    found = samples(
        Gauge("accuracy", 0.9125),
        Gauge("recall", 0.5, (("class", 'sp"am\\'),)),
        Gauge("accuracy", 0.25, (("slice", "lang=de"),)),
    )

    assert found == {
        ("mlx_accuracy", ()): 0.9125,
        ("mlx_accuracy", (("slice", "lang=de"),)): 0.25,
        ("mlx_recall", (("class", 'sp"am\\'),)): 0.5,
    }


@pytest.mark.parametrize("text", MARKUP)
def test_hostile_names_and_labels_stay_one_sample(text: str) -> None:
    assert len(samples(Gauge(text, 1.0, ((text, text),)))) == 1


def test_values_have_fixed_decimals_since_they_are_compared_as_text() -> None:
    text = metrics_text([Gauge("rmse", 1 / 3), Gauge("rows", 1000)])

    assert "mlx_rmse 0.333333\n" in text
    assert "mlx_rows 1000.000000\n" in text
    assert text.endswith("# EOF\n")


def test_a_sample_is_never_written_twice() -> None:
    assert samples(Gauge("a b", 1.0), Gauge("a_b", 2.0)) == {("mlx_a_b", ()): 1.0}


def test_what_is_no_number_is_left_out() -> None:
    assert samples(Gauge("a", math.nan), Gauge("b", math.inf)) == {}
