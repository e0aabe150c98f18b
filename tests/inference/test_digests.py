import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.tensors import text_column
from mlx_platform.inference.digests import row_digests

CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-1000, 1000), st.floats(width=32), st.text(max_size=3)
)


def test_the_type_of_a_number_and_the_order_of_the_columns_do_not_matter():
    double = {"a": np.array([0.1, 2.0, -0.0, np.nan]), "b": np.array([1, 0, 1, 0])}
    single = {"b": np.array([True, False, True, False]), "a": double["a"].astype(np.float32)}
    objects = {"a": text_column([0.1, 2, 0, None]), "b": text_column([1.0, False, True, 0])}

    assert row_digests(double).tolist() == row_digests(single).tolist() == row_digests(objects).tolist()
    assert len(set(row_digests(double).tolist())) == 4


def test_what_differs_has_another_digest():
    rows = [
        {"a": text_column(["1"])},
        {"a": np.array([1])},
        {"a": text_column([b"1"])},
        {"a": np.array([[1, 2]])},
        {"a": np.array([[2, 1]])},
        {"a": np.array(["1970-01-02"], dtype="datetime64[D]")},
        {"a": text_column([[1, 2, 3]])},
        {"a": text_column([["x", "y"]])},
        {"a": text_column([10**400])},
    ]

    # Text and the same bytes are one: files of images hold either.
    assert len({int(row_digests(row)[0]) for row in rows}) == len(rows) - 1


def test_lists_count_the_same_in_a_matrix_and_on_their_own():
    matrix = {"a": np.array([[1, 2], [3, 4]])}
    lists = {"a": text_column([[1.0, 2.0], [3.0, 4.0]])}

    assert row_digests(matrix).tolist() == row_digests(lists).tolist()


def test_times_count_the_same_in_every_unit():
    days = np.array(["2020-01-02"], dtype="datetime64[D]")

    assert row_digests({"a": days}).tolist() == row_digests({"a": days.astype("datetime64[us]")}).tolist()


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=20))
def test_a_row_has_its_digest_whatever_stands_around_it(rows):
    columns = {name: text_column([row[place] for row in rows]) for place, name in enumerate("ab")}
    alone = [
        int(row_digests({"a": text_column([first]), "b": text_column([second])})[0]) for first, second in rows
    ]

    assert row_digests(columns).tolist() == alone
