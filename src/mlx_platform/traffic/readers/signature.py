"""What is known about the model whose requests somebody else logged: what their bodies do not say."""

from dataclasses import dataclass

from mlx_platform.core.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Signature:
    """How the bodies of a log are read, and whose records they become.

    Attributes:
        columns: raw columns in the order in which rows without names have them; () for a model that takes
            one tensor.
        inputs: the model's input tensors.
        outputs: its output tensors.
        task: of the model, such as `classification`; empty when there is no model.
        labels: of a classifier, in the order of its probabilities.
        model: the name that the records get.
        version: the same.
        digest: of the package that is taken to have answered; logs of others do not know it.
    """

    columns: tuple[str, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    task: str = ""
    labels: tuple[str, ...] = ()
    model: str = ""
    version: str = ""
    digest: str = ""

    @property
    def only_column(self) -> str:
        """The name of the one value that a body without any structure is."""
        if len(self.columns) == 1:
            return self.columns[0]
        return self.inputs[0].name if not self.columns and len(self.inputs) == 1 else "input"
