"""Steps that turn raw outputs into answers: probabilities, labels, values."""

from abc import abstractmethod

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.core.text import printable
from mlx_platform.inference.steps.step import Batch, Options, Site, Step


def softmax(scores: Array) -> Array:
    """exp(x - max) / sum over the last axis, in the scores' own precision (at least single)."""
    values = scores.astype(np.result_type(scores.dtype, np.float32), copy=False)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(scores: Array) -> Array:
    """1 / (1 + exp(-x)), in the scores' own precision (at least single)."""
    values = scores.astype(np.result_type(scores.dtype, np.float32), copy=False)
    # The exponential of a negative number never overflows, and either side has one.
    powers = np.exp(-np.abs(values))
    shares: Array = np.where(values >= 0, 1, powers) / (1 + powers)
    return shares


class _ScoresStep(Step):
    """Scores of the output `output` become the probabilities `into`."""

    def __init__(self, options: Options, site: Site) -> None:
        self._output = site.output(options.text("output")).name
        self._into = options.text("into", "probabilities")
        options.done()
        self.takes = {self._output: "tensor"}
        self.makes = (self._into,)

    def __call__(self, batch: Batch) -> Batch:
        return batch | {self._into: self.probabilities(batch[self._output])}

    @staticmethod
    @abstractmethod
    def probabilities(scores: Array) -> Array:
        """Probabilities of the scores' shape."""


class SoftmaxStep(_ScoresStep):
    """`softmax`: the classes share one probability."""

    kind = "softmax"
    probabilities = staticmethod(softmax)


class SigmoidStep(_ScoresStep):
    """`sigmoid`: each class has a probability of its own."""

    kind = "sigmoid"
    probabilities = staticmethod(sigmoid)


class LabelsStep(Step):
    """`labels`: the most probable class of each row, with its probability and all the others.

    Makes `label` (text), `label_index` (INT64), `confidence` and `probabilities` [rows, classes]. The first
    class wins a tie, on every machine.
    """

    kind = "labels"

    def __init__(self, options: Options, site: Site) -> None:
        self._output = options.text("output", "probabilities")
        options.done()
        self._labels = text_column(list(site.labels)) if site.labels else None
        self.takes = {self._output: "tensor"}
        self.makes = self.answers = ("label", "label_index", "confidence", "probabilities")

    def __call__(self, batch: Batch) -> Batch:
        probabilities = batch[self._output]
        names = _class_names(self._labels, probabilities)
        best = probabilities.argmax(axis=1)
        return batch | {
            "label": names[best],
            "label_index": best,
            "confidence": probabilities.max(axis=1),
            "probabilities": probabilities,
        }


SEPARATOR = "|"
"""Between the labels of a row that has several, in answers and in files."""


class ThresholdStep(Step):
    """`threshold`: every class of a row whose probability reaches its threshold.

    `thresholds` holds one number for all classes (0.5 unless it is given), or one for each. Makes `labels`
    (text such as `cat|dog`, in the order of the classes, empty for none) and `probabilities` [rows, classes].
    """

    kind = "threshold"

    def __init__(self, options: Options, site: Site) -> None:
        self._output = options.text("output", "probabilities")
        self._thresholds = np.array(options.numbers("thresholds", (0.5,)))
        options.done()
        self._labels = text_column(list(site.labels)) if site.labels else None
        for label in site.labels:
            if SEPARATOR in label:
                raise UsageError(
                    f"The label {printable(label, 80)!r} holds {SEPARATOR!r}, which separates labels."
                )
        if site.labels and len(self._thresholds) not in {1, len(site.labels)}:
            raise UsageError(
                f"Step 'threshold' has {len(self._thresholds)} thresholds for {len(site.labels)} labels."
            )
        self.takes = {self._output: "tensor"}
        self.makes = self.answers = ("labels", "probabilities")

    def __call__(self, batch: Batch) -> Batch:
        probabilities = batch[self._output]
        names = _class_names(self._labels, probabilities)
        if len(self._thresholds) not in {1, len(names)}:
            raise UsageError(f"The model answers {len(names)} classes, not {len(self._thresholds)}.")
        # In the probabilities' own precision, so that 0.7 reaches a threshold of 0.7.
        reached = probabilities >= self._thresholds.astype(probabilities.dtype)
        labels = text_column([SEPARATOR.join(names[row]) for row in reached])
        return batch | {"labels": labels, "probabilities": probabilities}


class TopStep(Step):
    """`top_k`: the `k` most probable classes of each row, best first: `top_labels`, `top_probabilities`."""

    kind = "top_k"

    def __init__(self, options: Options, site: Site) -> None:
        self._output = options.text("output", "probabilities")
        self._k = options.integer("k", 5, minimum=1)
        options.done()
        self._labels = text_column(list(site.labels)) if site.labels else None
        self.takes = {self._output: "tensor"}
        self.makes = self.answers = ("top_labels", "top_probabilities")

    def __call__(self, batch: Batch) -> Batch:
        probabilities = batch[self._output]
        names = _class_names(self._labels, probabilities)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, : self._k]
        return batch | {
            "top_labels": names[best],
            "top_probabilities": np.take_along_axis(probabilities, best, axis=1),
        }


def _class_names(labels: Array | None, probabilities: Array) -> Array:
    if probabilities.ndim != 2:
        raise UsageError(f"Labels need probabilities [rows, classes], not {list(probabilities.shape)}.")
    classes = probabilities.shape[1]
    if labels is None:
        return text_column([str(index) for index in range(classes)])
    if len(labels) != classes:
        raise UsageError(f"The model answers {classes} classes, but {len(labels)} labels are declared.")
    return labels


class ValueStep(Step):
    """`value`: an output [rows] or [rows, 1] as one number per row."""

    kind = "value"

    def __init__(self, options: Options, site: Site) -> None:
        self._output = site.output(options.text("output")).name
        options.done()
        self.takes = {self._output: "tensor"}
        self.makes = self.answers = ("value",)

    def __call__(self, batch: Batch) -> Batch:
        values = batch[self._output]
        if values.size != len(values):
            raise UsageError(f"A value needs the shape [rows] or [rows, 1], not {list(values.shape)}.")
        return batch | {"value": values.reshape(-1)}
