import pytest

from mlx_platform.serving.trace import begin_trace, join_trace, server_timing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01".encode()


def test_a_request_joins_the_trace_that_it_names_with_a_span_of_its_own():
    trace = join_trace(HEADER)
    assert (trace.trace_id, trace.parent_id, trace.sampled) == (TRACE, PARENT, True)
    assert trace.span_id not in {PARENT, join_trace(HEADER).span_id}
    assert trace.header == f"00-{TRACE}-{trace.span_id}-01".encode()
    assert join_trace(trace.header).parent_id == trace.span_id


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_whoever_began_the_trace_decides_whether_it_is_recorded(flags, sampled):
    trace = join_trace(f"00-{TRACE}-{PARENT}-{flags}".encode())
    assert trace.sampled is sampled
    assert trace.header.endswith(b"-01" if sampled else b"-00")


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"00",
        HEADER[:-1],
        HEADER + b"0",
        HEADER + b"-more",  # only later versions may have more
        HEADER.upper(),
        b"ff" + HEADER[2:],
        b"00-" + b"0" * 32 + HEADER[35:],
        HEADER[:36] + b"0" * 16 + b"-01",
        b" " + HEADER,
        HEADER.replace(b"4b", b"4\xff"),
        HEADER * 2,
    ],
)
def test_a_header_that_is_no_valid_one_names_no_trace(header):
    assert join_trace(header) is None


def test_a_later_version_of_the_header_is_read_as_far_as_it_is_known():
    assert join_trace(b"01" + HEADER[2:] + b"-more").trace_id == TRACE
    assert join_trace(b"01" + HEADER[2:] + b"more") is None


def test_a_share_of_the_requests_begins_a_trace():
    assert begin_trace(0.0) is None
    traces = {begin_trace(1.0).trace_id for _ in range(50)}
    assert len(traces) == 50
    assert all(join_trace(begin_trace(1.0).header) for _ in range(50))


def test_stages_are_told_in_milliseconds():
    header = server_timing({"ingress": 0.0001234, "inference": 0.25}, {"tokenize": 0.001}, 0.3)
    assert header == b"ingress;dur=0.123, inference;dur=250.000, pre-tokenize;dur=1.000, total;dur=300.000"
