import tomllib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.evaluation.gate_lines import toml_lines, yaml_lines

TOML = '''# comment = "no"
version = 1  # one
guard = "pin#ned"
[defaults]
seed = 3
"confi.dence" = 0.9

[[gates]]
metric = "accuracy"
slices = { by = ["a", ["b", "c"]], min_rows = 5 }
note = """
[[gates]]
metric = "no"
\\""" still no
"""
[[gates]]
metric = 'log_loss'
max = [
  1,  # [[gates]]
  2,
]
a.b = 2
  [gates.slices]
  by = ["x"]
[[x.y]]
c = 1
[[x.y]]
c = 2
[x.y.z]
d = 1979-05-27 07:32:00
'''


def test_keys_are_found_on_their_lines_whatever_stands_in_texts_and_comments():
    lines = toml_lines(TOML)

    assert lines["version",] == 2
    assert lines["defaults", "confi.dence"] == 6
    assert lines["gates", 0] == 8
    assert lines["gates", 0, "slices", "min_rows"] == 10
    assert lines["gates", 0, "slices", "by", 1, 1] == 10
    assert lines["gates", 1] == 16
    assert lines["gates", 1, "max", 1] == 20
    assert lines["gates", 1, "a", "b"] == 22
    assert lines["gates", 1, "slices", "by"] == 24
    assert lines["x", "y", 1, "c"] == 28
    assert lines["x", "y", 1, "z", "d"] == 30
    assert ("gates", 2) not in lines


def _ways(value, way=()):
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in entries:
        yield (*way, key)
        yield from _ways(inner, (*way, key))


@pytest.mark.parametrize(
    "text",
    [
        TOML,
        "",
        "\n# nothing",
        "a = {}\nb = []\nc = [ ]",
        'a = "\\\\"\nb = "\\""\nc = \'\\\'\nd = 1',
        "a = '''x'''''\nb = 1",
        'a = """""x"""""\nb = 1',
        "a = [[1, [2]], [{b = [{c = 1}]}]]\r\nd = 1\r\n",
        '"a b"."c" = 1\n[ "q" . r ]\ns = true',
        "a = [\n # x ]\n 1, 2\n]\n[b]\nc = -1.5e3 # end",
    ],
)
def test_every_value_that_toml_tells_has_a_line(text):
    assert set(_ways(tomllib.loads(text))) <= set(toml_lines(text))


_KEYS = st.sampled_from(["a", "b-c", "d_e", '"f g"', "'h.i'"])
_VALUES = st.recursive(
    st.sampled_from(["1", "-2.5", "true", '"x # [y] = {"', "'''a\nb'''", '"""\\""" """', "1979-05-27"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "[" + ", ".join(parts) + "]"),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(_KEYS, _VALUES), max_size=6, unique_by=lambda pair: pair[0].strip("\"'")))
def test_random_documents_have_a_line_for_every_value_and_the_right_one_for_keys(pairs):
    text, expected, line = "", {}, 1
    for key, value in pairs:
        expected[key.strip("\"'"),] = line
        text += f"{key} = {value}\n"
        line += value.count("\n") + 1

    lines = toml_lines(text)

    assert {way: lines[way] for way in expected} == expected
    assert set(_ways(tomllib.loads(text))) <= set(lines)


def test_yaml_has_lines_as_well():
    text = "version: 1\ngates:\n  - metric: accuracy\n    min: 0.9\n  - {metric: ece,\n     max: 0.1}\n"

    lines = yaml_lines(yaml.compose(text, Loader=yaml.SafeLoader))

    assert lines["gates", 0, "min"] == 4
    assert lines["gates", 1] == 5
    assert lines["gates", 1, "max"] == 6
    assert set(_ways(yaml.safe_load(text))) <= set(lines)
