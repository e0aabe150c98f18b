import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import RunCommand

import mlx_platform
from mlx_platform.core.errors import NotFoundError
from mlx_platform.core.settings import load_settings
from mlx_platform.workflows.context import default_actor, make_context
from mlx_platform.workflows.subject import open_model, open_subject


@pytest.fixture
def doubler(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    path = tmp_path / "doubler.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_an_unregistered_file_goes_by_its_stem_and_version_0(doubler: Path) -> None:
    context = make_context(load_settings())
    with open_subject(context, str(doubler)) as subject:
        model = open_model(context, subject)

        assert (subject.name, subject.number, subject.version) == ("doubler", "0", None)
        assert model.predict(np.ones((1, 2), np.float32)).tensors["y"].tolist() == [[2.0, 2.0]]


def test_a_file_that_is_not_there_is_not_found() -> None:
    with (
        pytest.raises(NotFoundError, match=r"no\.onnx"),
        open_subject(make_context(load_settings()), "no.onnx"),
    ):
        pass


@pytest.mark.parametrize(
    "command", [("serve", "digits"), ("eval", "digits", "--data", "data.csv"), ("diff", "digits", "digits")]
)
def test_a_folder_that_is_no_registered_model_is_offered_by_its_path(
    mlx: RunCommand, doubler: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(doubler.parent)
    Path("data.csv").write_text("x0,x1,label\n1,2,0\n")
    folder = Path("digits")
    folder.mkdir()
    mlx("init")
    assert "Register one with: mlx register NAME SOURCE" in mlx(*command).err
    doubler.rename(folder / "model.onnx")
    outcome = mlx(*command)
    assert (outcome.code, "If you mean the folder, write: ./digits" in outcome.err) == (3, True)
    assert "Register it with: mlx register NAME digits" in mlx("show", "digits").err


def test_a_model_loaded_from_a_file_keeps_its_package_and_gives_it_back(doubler: Path) -> None:
    model = mlx_platform.load(str(doubler))
    root = model.package.root

    assert model.self_check() == []
    assert root.is_dir()
    del model
    gc.collect()
    assert not root.exists()


@pytest.mark.parametrize(
    ("environment", "actor"),
    [({"GITHUB_ACTOR": "octocat"}, "octocat"), ({"GITLAB_USER_LOGIN": "tanuki"}, "tanuki")],
)
def test_in_a_pipeline_the_actor_is_its_user(environment: dict[str, str], actor: str) -> None:
    assert default_actor(environment) == actor
