import os
import zipfile

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import skops.io
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.estimator import _TRUSTED, convert_estimator

CAP = 1 << 24


def test_a_fitted_network_answers_as_the_estimator_does(mlp, mlp_skops, digits):
    network = convert_estimator(mlp_skops, cap=CAP).network

    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    labels, probabilities = session.run(None, {"x": digits[0]})
    assert labels.tolist() == mlp.predict(digits[0]).tolist()
    assert probabilities == pytest.approx(mlp.predict_proba(digits[0]), abs=1e-5)


def test_the_same_file_gives_the_same_bytes(mlp_skops):
    assert convert_estimator(mlp_skops, cap=CAP) == convert_estimator(mlp_skops, cap=CAP)


def test_a_regressor_in_a_pipeline_keeps_its_column_names(tmp_path):
    frame = pd.DataFrame({"age": [1.0, 2, 3], "size": [4.0, 6, 5]})
    estimator = make_pipeline(StandardScaler(), RandomForestRegressor(2, random_state=0)).fit(
        frame, [1, 2, 3]
    )
    skops.io.dump(estimator, tmp_path / "m.skops")

    converted = convert_estimator(tmp_path / "m.skops", cap=CAP)

    assert converted.columns == ("age", "size")
    session = onnxruntime.InferenceSession(converted.network, providers=["CPUExecutionProvider"])
    values = session.run(None, {"x": frame.to_numpy(np.float32)})[0]
    assert values[:, 0] == pytest.approx(estimator.predict(frame))


def test_foreign_types_are_named_and_not_loaded(tmp_path):
    skops.io.dump(make_pipeline(FunctionTransformer(os.getcwd), LinearRegression()), tmp_path / "m.skops")

    with pytest.raises(UsageError, match=r"not trusted: posix\.getcwd"):
        convert_estimator(tmp_path / "m.skops", cap=CAP)


@pytest.mark.parametrize(
    ("name", "trusted"),
    [
        ("sklearn.neural_network._stochastic_optimizers.AdamOptimizer", True),
        ("sklearn.tree._tree.Tree", True),
        ("builtins.eval", False),
        ("sklearn.externals.joblib.Memory", False),
        ("sklearn.utils._testing.TempMemmap", False),
        ("sklearn.utils.murmurhash", False),
        ("sklearnx.Model", False),
        ("numpy.memmap", False),
        ("sklearn.tree.Tree\n", False),
    ],
)
def test_only_classes_of_scikit_learn_are_trusted_beyond_the_librarys_own_list(name, trusted):
    assert bool(_TRUSTED.fullmatch(name)) is trusted


def test_a_schema_that_is_none_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.skops", "w") as archive:
        archive.writestr("schema.json", "{}")

    with pytest.raises(UsageError, match="cannot be read"):
        convert_estimator(tmp_path / "m.skops", cap=CAP)


def test_an_archive_that_unpacks_to_too_much_is_refused(mlp_skops):
    with pytest.raises(UsageError, match="too much"):
        convert_estimator(mlp_skops, cap=100)


@pytest.mark.parametrize("estimator", [LinearRegression(), CountVectorizer().fit(["good film"])])
def test_an_estimator_over_no_columns_of_numbers_is_refused(tmp_path, estimator):
    skops.io.dump(estimator, tmp_path / "m.skops")

    with pytest.raises(UsageError, match="no fitted estimator"):
        convert_estimator(tmp_path / "m.skops", cap=CAP)
