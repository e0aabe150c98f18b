import pytest

from mlx_platform.core.documents import FILE_CAP
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.evaluation.gate_file import read_gates
from mlx_platform.evaluation.gate_parser import parse_expression
from mlx_platform.evaluation.gates import check_contradictions

TOML = """
version = 1
baseline = "production"
[defaults]
confidence = 0.9
[[gates]]
metric = "accuracy"
min = 0.8
[[gates]]
metric = "accuracy"
max_drop = "1pp"
"""
YAML = """
version: 1
baseline: production
defaults: {confidence: 0.9}
gates:
  - {metric: accuracy, min: 0.8}
  - {metric: accuracy, max_drop: 1pp}
"""


def test_toml_and_yaml_say_the_same(tmp_path):
    files = []
    for name, text in (("gates.toml", TOML), ("gates.yaml", YAML)):
        path = tmp_path / name
        path.write_text(text)
        files.append(read_gates(path))

    assert files[0].gates == files[1].gates
    assert files[0].defaults == files[1].defaults
    assert files[0].source.endswith("gates.toml")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gates.toml", b"version = ", "no valid TOML"),
        ("gates.toml", b"\xff\xfe", "not UTF-8"),
        ("gates.yaml", b"version: [1", "no valid YAML"),
        ("gates.yaml", b"version: 1\nx: !!python/object/apply:os.system ['true']\n", "no valid YAML"),
        ("gates.yaml", b"a: &a [1]\nb: [*a, *a]\n", "aliases"),
        (
            "gates.yaml",
            b"version: 1\ngates:\n- {metric: accuracy, min: 0.9, min: 0.1}\n",
            "line 3: the key 'min'",
        ),
        ("gates.yaml", b"", "not a table"),
        ("gates.yaml", b"[" * 5000, "no valid YAML"),
        ("gates.toml", b"x = " + b"[" * 5000, "no valid TOML"),
        ("gates.toml", b"#" * (FILE_CAP + 1), "larger than 256 KiB"),
        ("gates.ini", b"", "neither .toml nor .yaml"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_usage_error_that_names_it(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(UsageError, match=name) as refusal:
        read_gates(path)

    assert said in refusal.value.message


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        read_gates(tmp_path / "gates.toml")


def test_a_folder_is_no_gate_file(tmp_path):
    with pytest.raises(UsageError, match="Cannot read"):
        read_gates(tmp_path)


def test_two_gates_of_the_command_line_are_named_in_one_sentence():
    with pytest.raises(
        UsageError, match=r"^The gates 'accuracy >= 0\.9' and 'accuracy <= 0\.5': accuracy cannot"
    ):
        check_contradictions([parse_expression("accuracy>=0.9"), parse_expression("accuracy<=0.5")])
