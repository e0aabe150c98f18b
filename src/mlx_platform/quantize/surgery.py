"""Layers taken back to float32 in a model that is quantized already: no row is calibrated again."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_platform.quantize.plan import FLOAT_OUTPUT, Plan
from mlx_platform.quantize.storage import load, save
from mlx_platform.quantize.tidy import all_nodes, tidy

_INPUT_SUFFIX = "_QuantizeLinear_Input"  # of a graph output before it is quantized, as the quantizer names it
_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
_FLOAT_SUFFIX = "_float"
_BYTES_SAVED = 3  # of the four of a float32 weight


@dataclass(frozen=True, slots=True)
class _Island:
    """A tensor that becomes integers and numbers again: under which names, and by which two nodes.

    `integer` says that an integer operator makes it, so that nobody can read it as it was before.
    """

    raw: str
    read: str
    integer: bool
    nodes: tuple[Any, Any]


class Surgery:
    """A prepared model beside its quantized form, from which forms with fewer integer layers are cut.

    They have the nodes and the order of the prepared model, with what the quantizer put in for the layers
    that stay integer. What computes in float reads a tensor as it was before it became integers, unless an
    integer operator made it: the sum beside a quantized product loses nothing.
    """

    def __init__(self, prepared: Path, quantized: Path, chosen: Plan) -> None:
        """Read both models.

        Args:
            prepared: the float model.
            quantized: the same in QDQ form.
            chosen: the nodes that are quantized in it.
        """
        self.plan = chosen
        self._before, self._after = load(prepared), load(quantized)
        graph = self._before.graph
        self._named = {node.name: node for node in graph.node}
        self._maker = {name: node for node in graph.node for name in node.output}
        self._integer = {node.name: node for node in self._after.graph.node}
        self._added = {
            node.output[0]: node
            for node in self._after.graph.node
            if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.name not in self._named
        }
        stored = {tensor.name: tensor for tensor in self._after.graph.initializer}
        self._constants = {tensor.name: tensor for tensor in graph.initializer} | stored
        # The quantizer gives a bias that it made integer the name of the float one.
        self._replaced = {tensor.name for tensor in graph.initializer} & self._added.keys()
        self._outputs = {value.name for value in graph.output}
        self._pairs = self._find_pairs()

    @property
    def layers(self) -> tuple[str, ...]:
        """The integer layers in the order of the graph."""
        return tuple(layer.node for layer in self.plan.layers)

    def cost(self, node: str) -> int:
        """The bytes that a layer takes more in float32."""
        return next(layer.parameters for layer in self.plan.layers if layer.node == node) * _BYTES_SAVED

    def kept(self, reverted: Collection[str]) -> Plan:
        """The plan without some layers, and without the followers that lose their integer input with them."""
        left = self.plan.without(reverted)
        integer = {
            name
            for layer in left.layers
            if layer.operator not in FLOAT_OUTPUT and layer.operator != "Gather"
            for name in self._named[layer.node].output
        }
        followers = []
        for name in left.followers:  # in topological order
            if self._named[name].input[0] in integer:
                followers.append(name)
                integer.update(self._named[name].output)
        return replace(left, followers=tuple(followers))

    def write(self, reverted: Collection[str], out: Path) -> Path:
        """Write the model with these layers in float32; none of them leaves every layer integer."""
        save(self._cut(set(self.kept(reverted).nodes)), out)
        return out

    def _find_pairs(self) -> dict[str, tuple[Any, Any]]:
        """How activations become integers and numbers again, by their names in the prepared model."""
        back = {node.input[0]: node for node in self._added.values() if node.op_type == "DequantizeLinear"}
        return {
            node.input[0].removesuffix(_INPUT_SUFFIX): (node, back[node.output[0]])
            for node in self._added.values()
            if node.op_type == "QuantizeLinear" and node.output[0] in back
        }

    def _cut(self, kept: set[str]) -> Any:
        import onnx

        islands = self._islands(kept)
        body: list[Any] = []
        for value in self._before.graph.input:
            body += islands[value.name].nodes if value.name in islands else ()
        for node in self._before.graph.node:
            if node.name not in kept:
                body.append(self._as_float(node, islands))
            elif node.name in self._integer:  # else it is part of the layer before it
                body.append(self._as_integer(node, islands))
            for name in node.output:
                body += islands[name].nodes if name in islands else ()
        model = onnx.ModelProto()
        model.CopyFrom(self._after)
        del model.graph.node[:]
        del model.graph.initializer[:]
        model.graph.node.extend([*self._constant_nodes(body), *body])
        model.graph.initializer.extend(self._initializers(model.graph))
        tidy(model, self._before)
        return model

    def _islands(self, kept: set[str]) -> dict[str, _Island]:
        """The tensors that stay integer somewhere: some layer that is kept reads or makes them so."""
        reads = {name for node in self._before.graph.node if node.name in kept for name in node.input}
        found = {}
        for name, (quantize, dequantize) in self._pairs.items():
            maker = self._maker.get(name)
            integer = maker is not None and maker.name in kept and maker.op_type not in FLOAT_OUTPUT
            if not integer and name not in reads:
                continue
            # The graph gives out what the others read.
            hidden = integer and name in self._outputs
            raw, read = (name + _INPUT_SUFFIX, name) if hidden else (name, name + _OUTPUT_SUFFIX)
            nodes = (
                _renamed(quantize, {quantize.input[0]: raw}),
                _renamed(dequantize, {}, {dequantize.output[0]: read}),
            )
            found[name] = _Island(raw, read, integer, nodes)
        return found

    def _as_float(self, node: Any, islands: dict[str, _Island]) -> Any:
        names = {name: island.read if island.integer else island.raw for name, island in islands.items()}
        names |= {name: name + _FLOAT_SUFFIX for name in node.input if name in self._replaced}
        return _renamed(node, names)

    def _as_integer(self, node: Any, islands: dict[str, _Island]) -> Any:
        integer = self._integer[node.name]
        inputs = {
            theirs: islands[mine].read if mine in islands else theirs
            for mine, theirs in zip(node.input, integer.input, strict=True)
        }
        outputs = {}
        for name in integer.output:
            plain = name.removesuffix(_INPUT_SUFFIX)
            outputs[name] = islands[plain].raw if plain in islands else plain
        return _renamed(integer, inputs, outputs)

    def _constant_nodes(self, body: list[Any]) -> list[Any]:
        """What makes numbers of the stored integers that the body reads."""
        made = {name for node in body for name in node.output}
        found: dict[str, Any] = {}

        def need(name: str) -> None:
            if name in self._added and name not in made and name not in found:
                for inner in self._added[name].input:
                    need(inner)
                found[name] = self._added[name]

        for node in body:
            for name in node.input:
                need(name)
        return list(found.values())

    def _initializers(self, graph: Any) -> Iterator[Any]:
        import onnx

        made = {name for node in graph.node for name in node.output}
        used = dict.fromkeys(name for node in all_nodes(graph) for name in node.input)
        used |= dict.fromkeys(self._outputs)  # a constant may be given out as it is
        for name in used:
            if name in self._constants and name not in made:
                yield self._constants[name]
            plain = name.removesuffix(_FLOAT_SUFFIX)
            if plain != name and plain in self._replaced:
                twin = onnx.TensorProto()
                twin.CopyFrom(self._constants[plain])
                twin.name = name
                yield twin


def _renamed(node: Any, inputs: dict[str, str], outputs: dict[str, str] | None = None) -> Any:
    """A copy of a node that reads and writes tensors of other names."""
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for names, mapping in ((copy.input, inputs), (copy.output, outputs or {})):
        changed = [mapping.get(name, name) for name in names]
        del names[:]
        names.extend(changed)
    return copy
