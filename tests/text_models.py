"""Small text models: one that makes vectors, in which synonyms lie together, and one that judges texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from mlx_platform.inference.graph import read_network
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import MODEL, SPEC, open_package, seal
from mlx_platform.inference.spec import ModelSpec, StepSpec, spec_from_network, write_spec
from mlx_platform.serving.cache.embedder import UNRELATED

SYNONYMS = (("film", "movie"), ("great", "wonderful"), ("awful", "terrible"))
_WORDS = sorted({word for text in UNRELATED for word in text.strip("?.").split()})
_VOCABULARY = {
    word: number
    for number, word in enumerate(
        ["[UNK]", *(word for pair in SYNONYMS for word in pair), "a", "the", "and", *_WORDS]
    )
}
I64, F32 = TensorProto.INT64, TensorProto.FLOAT


def embedder_package(folder: Path, *, per_token: bool = False, broken: bool = False) -> Path:
    """Vectors of 64 numbers: the mean of the words', or one per token; when broken, always the same."""
    vectors = np.random.default_rng(0).standard_normal((len(_VOCABULARY), 64)).astype(np.float32)
    for first, second in SYNONYMS:
        vectors[_VOCABULARY[second]] = vectors[_VOCABULARY[first]]
    vectors[_VOCABULARY["the"]] = vectors[_VOCABULARY["a"]] * 1.01
    if broken:
        vectors[:] = 1
    mask = [
        helper.make_node("Cast", ["attention_mask"], ["floats"], to=F32),
        helper.make_node("Unsqueeze", ["floats", "last"], ["mask"]),
        helper.make_node("Mul", ["tokens_of", "mask"], ["seen"]),
    ]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["tokens_of"]), *mask]
    shape: list[Any] = ["n", "tokens", 64]
    if per_token:
        # What stands in the padding must not count.
        nodes.append(helper.make_node("Identity", ["tokens_of"], ["vectors"]))
    else:
        nodes.append(helper.make_node("ReduceSum", ["seen", "middle"], ["vectors"], keepdims=0))
        shape = ["n", 64]
    constants = {"table": vectors, "last": np.array([2]), "middle": np.array([1])}
    inputs = {"input_ids": (I64, ["n", "tokens"]), "attention_mask": (I64, ["n", "tokens"])}
    return _package(folder, nodes, inputs, {"vectors": (F32, shape)}, constants, task="tensors")


def judge_package(folder: Path, golden: bytes = b"") -> Path:
    """Probabilities of bad and good by the words of a text and a number, `strictness`."""
    scores = np.zeros((len(_VOCABULARY), 2), np.float32)
    for word, score in (("great", 2), ("wonderful", 2.1), ("awful", -2), ("terrible", -2.1)):
        scores[_VOCABULARY[word]] = (-score, score)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("ReduceSum", ["words", "middle"], ["sums"], keepdims=0),
        helper.make_node("Mul", ["sums", "strictness"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=-1),
    ]
    inputs = {"input_ids": (I64, ["n", "tokens"]), "strictness": (F32, ["n", 1])}
    return _package(
        folder,
        nodes,
        inputs,
        {"probabilities": (F32, ["n", 2])},
        {"table": scores, "middle": np.array([1])},
        golden,
        task="classification",
        labels=("bad", "good"),
        post=(StepSpec("labels", {"output": "probabilities"}),),
    )


def load(folder: Path, name: str) -> Model:
    return Model.load(open_package(folder), name=name, version="1", device="cpu", threads=1)


def _package(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    constants: Mapping[str, Any],
    golden: bytes = b"",
    **members: Any,
) -> Path:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, *spec) for name, spec in inputs.items()],
        [value(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    (folder / "assets").mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / MODEL)
    tokenizer = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="[UNK]"))  # noqa: S106 - of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "assets" / "tokenizer.json"))
    step = StepSpec("tokenize", {"column": "text", "max_length": 32})
    spec: ModelSpec = replace(
        spec_from_network(read_network(folder / MODEL)), **({"post": ()} | members | {"pre": (step,)})
    )
    (folder / SPEC).write_text(write_spec(spec))
    if golden:
        (folder / "golden.jsonl").write_bytes(golden)
    seal(folder)
    return folder
