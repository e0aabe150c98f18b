"""Every label that was told is joined to a row, or counted among those that are not."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.span import make_grid
from mlx_platform.core.tensors import encode_array, text_column
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.online.joined import Fates, Joining, join
from mlx_platform.workflows.online.labels import Label, Labels

START = datetime(2026, 3, 8, tzinfo=UTC)
RULE = Joining("d", "classification", dict, make_grid("1h", ZoneInfo("UTC")), ("arm",), timedelta(hours=2))
IDS = ["a", "b"]

records = st.builds(
    lambda number, request_id, digest, status, rows, output, truncated: Record(
        request_id=request_id,
        time=START + timedelta(minutes=number),
        seq=number,
        server_id="s",
        boot_id="b",
        model="m",
        version="1",
        digest=digest,
        status=status,
        rows=rows,
        outputs={output: encode_array(text_column(["red"] * rows))},
        truncated=truncated,
    ),
    number=st.integers(0, 500),
    request_id=st.sampled_from(IDS),
    digest=st.sampled_from(["d"] * 5 + ["other"]),
    status=st.sampled_from([200] * 5 + [500]),
    rows=st.sampled_from([1, 1, 2, 3]),
    output=st.sampled_from(["label"] * 5 + ["score"]),
    truncated=st.sampled_from([False] * 5 + [True]),
)
told = st.tuples(
    st.sampled_from([*IDS, "", "nowhere"]),
    st.sampled_from([None, None, 0, 1, 2, 7]),
    st.builds(
        Label,
        value=st.sampled_from(["red", "red", "blue", "", None]),
        time=st.none() | st.integers(-60, 900).map(lambda minutes: START + timedelta(minutes=minutes)),
    ),
)


@settings(max_examples=300)
@given(st.lists(records, min_size=1, max_size=6), st.lists(told, max_size=25))
def test_no_label_gets_lost(log, labels):
    gathered = Labels("a test")
    for request_id, row, label in labels:
        gathered.add(request_id, row, label)

    joined = join(log, LogStats(), gathered, RULE)

    fates = joined.fates
    left_out = sum(getattr(fates, name).count for name in Fates.NAMED if name != "again")
    counted = gathered.repeated + gathered.empty + gathered.contradicted.count
    assert len(labels) == gathered.told == len(joined.truth) + left_out + counted
    assert fates.joined == len(joined.truth) == len(joined.windows) == len(joined.columns["arm"])
    assert fates.joined <= fates.answered
