"""From a prepared model and ranges to an INT8 model in QDQ form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.inference.session import runtime
from mlx_platform.quantize.calibrate import Range
from mlx_platform.quantize.plan import FLOAT_OUTPUT, Built, Plan
from mlx_platform.quantize.runtime import quiet
from mlx_platform.quantize.storage import load, save
from mlx_platform.quantize.target import Target
from mlx_platform.quantize.tidy import tidy


def build(
    prepared: Path, out: Path, chosen: Plan, ranges: Mapping[str, Range], target: Target, *, model_name: str
) -> Built:
    """Write the INT8 model: weights per output channel, activations per tensor, int32 biases.

    The same arguments give the same bytes.

    Args:
        prepared: the prepared model.
        out: where to write.
        chosen: the nodes to quantize.
        ranges: of every tensor of the plan; nodes with a tensor that has none stay float.
        target: the integer types.
        model_name: for messages.

    Raises:
        UndecidedError: no node is left to quantize.
    """
    model = load(prepared)
    unseen = _without_range(model, chosen, ranges)
    kept = chosen.without(unseen)
    if not kept.layers:
        raise UndecidedError(
            f"No layer of {model_name} was reached by the calibration rows. Nothing was written.",
            hint="Calibrate on rows as the model meets them in production.",
        )
    with quiet() as notes:
        quantized = _quantize(prepared, kept, ranges, target)
    tidy(quantized, model)
    save(quantized, out)
    return Built(kept, unseen, tuple(notes))


def _without_range(model: Any, chosen: Plan, ranges: Mapping[str, Range]) -> dict[str, str]:
    planned, watched = set(chosen.nodes), set(chosen.tensors)
    return {
        node.name: "No calibration row gave it a value."
        for node in model.graph.node
        if node.name in planned
        and any(name in watched and name not in ranges for name in (*node.input, *node.output))
    }


def _quantize(prepared: Path, chosen: Plan, ranges: Mapping[str, Range], target: Target) -> Any:
    runtime()
    from onnxruntime.quantization import CalibrationMethod, QDQQuantizer, QuantType, TensorData, TensorsData
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    model = load_model_with_shape_infer(prepared)
    types = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
    data = {
        name: TensorData(lowest=np.float32(found.lowest), highest=np.float32(found.highest))
        for name, found in ranges.items()
    }
    nodes = set(chosen.nodes)
    operators = sorted({node.op_type for node in model.graph.node if node.name in nodes})
    quantizer = QDQQuantizer(
        model,
        per_channel=True,
        reduce_range=target.reduce_range,
        weight_qType=types[target.weight],
        activation_qType=types[target.activation],
        tensors_range=TensorsData(CalibrationMethod.MinMax, data),
        nodes_to_quantize=list(chosen.nodes),
        nodes_to_exclude=[],
        op_types_to_quantize=operators,
        extra_options={"OpTypesToExcludeOutputQuantization": list(FLOAT_OUTPUT)},
    )
    quantizer.quantize_model()
    # Its save path sorts the nodes, which appending left out of order.
    quantizer.model.topological_sort()
    return quantizer.model.model
