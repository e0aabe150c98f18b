import pytest

from mlx_platform.core.errors import IntegrityError, UsageError
from mlx_platform.registry.mlmodel import CAP, network_path

PLAIN = "flavors:\n  onnx:\n    data: model.onnx\n  python_function:\n    loader_module: mlflow.onnx\n"


def test_the_network_is_where_the_flavor_says() -> None:
    assert network_path(PLAIN.encode(), "theirs/1") == "model.onnx"
    assert network_path(PLAIN.replace("model.onnx", "data/net.onnx").encode(), "theirs/1") == "data/net.onnx"


@pytest.mark.parametrize(
    ("flavors", "named", "hint"),
    [
        (
            "{sklearn: {pickled_model: m.pkl}, python_function: {loader_module: mlflow.sklearn}}",
            "sklearn",
            "skops",
        ),
        ("{pytorch: {model_data: data}, python_function: {}}", "pytorch", "torch.onnx.export"),
        ("{python_function: {loader_module: mlflow.pyfunc.model}}", "pyfunc.model", "Convert it to ONNX"),
        ("{python_function: {loader_module: evil}}", "pyfunc", "Convert it to ONNX"),
        ("{python_function: {loader_module: mlflow.lightgbm}}", "lightgbm", "Convert it to ONNX"),
        ("{}", "pyfunc", "Convert it to ONNX"),
        ('{"\\e[31mevil\\n": {}}', "\\\\u001b\\[31mevil\\\\u000a", "Convert it to ONNX"),
    ],
)
def test_another_flavor_is_refused_by_its_name(flavors: str, named: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"flavor {named}: ") as caught:
        network_path(f"flavors: {flavors}\n".encode(), "theirs/1")

    assert hint in caught.value.hint
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "data",
    [
        "../model.onnx",
        "/etc/passwd",
        "a/../../b",
        "[a]",
        "1",
        "",
        "null",
        "{a: b}",
        "'C:\\x'",
        '"a\\0b"',
        "'~/../x'",
    ],
)
def test_a_network_outside_of_its_folder_is_refused(data: str) -> None:
    with pytest.raises(IntegrityError, match="inside its folder"):
        network_path(f"flavors:\n  onnx:\n    data: {data}\n".encode(), "theirs/1")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"- a\n- b: [",
        b"[" * 3000,
        b"a: &a [x]\nb: *a\n",
        b"flavors: !!python/object/apply:os.system ['touch canary']\n",
        b"flavors: !!python/name:os.system\n",
        b"a: " + b"{b: " * 25 + b"c" + b"}" * 25,
        b"a: 2026-99-99\n",
        PLAIN.encode() + b"#" * CAP,
        b"--- a\n--- b\n",
    ],
)
def test_what_is_no_mlmodel_is_refused(content: bytes) -> None:
    with pytest.raises(IntegrityError, match="MLmodel of theirs/1") as caught:
        network_path(content, "theirs/1")

    assert caught.value.message.isprintable()
