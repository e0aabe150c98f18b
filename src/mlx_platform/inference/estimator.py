"""A scikit-learn estimator, kept as a skops file, made into a network without running foreign code."""

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import first_line, plural, printable

INPUT = "x"
_MAX_ENTRIES = 10_000
# Besides what skops itself trusts of scikit-learn, NumPy and SciPy: further classes of scikit-learn, such as
# the optimizer inside a fitted network. No functions, no vendored or test code.
_TRUSTED = re.compile(
    r"sklearn(?!\.(?:.+\.)?(?:externals|tests|_testing|datasets)\.)(\.[a-z_]\w*)*\._?[A-Z]\w*"
)


@dataclass(frozen=True, slots=True)
class Converted:
    """A network's bytes, and the names of the columns that the estimator was fitted with, () for none."""

    network: bytes
    columns: tuple[str, ...]


def convert_estimator(path: Path, *, cap: int) -> Converted:
    """Load a `.skops` file and convert it with skl2onnx; the same file gives the same bytes.

    Args:
        path: a file that `skops.io.dump` wrote.
        cap: bytes that the file may unpack to.

    Raises:
        UsageError: types that are not scikit-learn's, NumPy's or SciPy's; no fitted estimator over columns of
            numbers; or one that skl2onnx cannot convert.
    """
    import skops.io

    _check_archive(path, cap)
    try:
        untrusted = skops.io.get_untrusted_types(file=path)
    except Exception as error:  # skops raises what its nodes raise for files that are not well formed
        raise UsageError(f"{path} cannot be read as a skops file.") from error
    foreign = sorted(name for name in untrusted if not _TRUSTED.fullmatch(name))
    if foreign:
        raise UsageError(
            f"{path} holds types that are not trusted: {printable(', '.join(foreign), 300)}.",
            hint="Only classes of scikit-learn, NumPy and SciPy are loaded; convert other models to ONNX.",
        )
    try:
        estimator = skops.io.load(path, trusted=untrusted)
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {first_line(error)}.") from error
    return _convert(estimator, path)


def _check_archive(path: Path, cap: int) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    if len(entries) > _MAX_ENTRIES or size > cap:
        raise UsageError(
            f"{path} unpacks to {plural(len(entries), 'file')} of {size:,} bytes, which is too much."
        )


def _convert(estimator: Any, path: Path) -> Converted:
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.base import is_classifier

    width = getattr(estimator, "n_features_in_", None)
    if not isinstance(width, int):
        raise UsageError(f"{path} holds no fitted estimator over columns of numbers.")
    try:
        model = to_onnx(
            estimator,
            initial_types=[(INPUT, FloatTensorType([None, width]))],
            # Maps per row instead of one array could not be served, and the default name is random.
            options={"zipmap": False} if is_classifier(estimator) else None,
            name="model",
        )
    except Exception as error:  # skl2onnx raises its own and NotImplementedError, ValueError, RuntimeError
        raise UsageError(f"{path} cannot be converted to ONNX: {first_line(error)}.") from error
    names = getattr(estimator, "feature_names_in_", ())
    return Converted(model.SerializeToString(deterministic=True), tuple(str(name) for name in names))
