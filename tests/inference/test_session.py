import os
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from mlx_platform.core.errors import DeadlineError, NotFoundError, UnavailableError, UsageError
from mlx_platform.inference.session import DeviceError, OutOfMemoryError, OverLimitError, open_session

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ONE = {"x": np.ones((1, 3), np.float32)}


@pytest.fixture
def saved(tmp_path):
    def save(model):
        onnx.save(model, tmp_path / "m.onnx")
        return tmp_path / "m.onnx"

    return save


@pytest.fixture
def endless(saved, graph):
    """A loop of 2^62 turns in a few hundred bytes."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, ["n", 3]),
        ],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("w", FLOAT, ["n", 3])],
    )
    return saved(
        graph(
            [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)],
            {"x": (FLOAT, ["n", 3])},
            {"y": (FLOAT, ["n", 3])},
            {"turns": np.int64(2**62)},
        )
    )


def test_a_session_says_what_it_is(logistic_onnx):
    session = open_session(logistic_onnx, device="cpu", threads=2)

    assert (session.device, session.threads, session.providers) == ("cpu", 2, ("CPUExecutionProvider",))
    assert [str(tensor) for tensor in session.inputs] == ["x FP32 [?, 64]"]
    assert [tensor.name for tensor in session.outputs] == ["label", "probabilities"]


def test_threads_are_half_of_the_cores_and_at_least_one(matmul_onnx):
    assert open_session(matmul_onnx).threads == max(1, len(os.sched_getaffinity(0)) // 2)


def test_auto_takes_the_cpu_where_there_is_no_cuda(matmul_onnx):
    session = open_session(matmul_onnx)
    assert session.device == ("cuda" if session.providers[0] == "CUDAExecutionProvider" else "cpu")


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="there is CUDA")
def test_cuda_that_is_not_there_is_a_sentence(matmul_onnx):
    with pytest.raises(UsageError, match="cannot use CUDA"):
        open_session(matmul_onnx, device="cuda")


def test_an_unknown_device_is_refused(matmul_onnx):
    with pytest.raises(UsageError) as caught:
        open_session(matmul_onnx, device="cdua")
    assert "'cuda'" in caught.value.hint


def test_only_the_asked_outputs_are_computed(logistic_onnx):
    session = open_session(logistic_onnx)
    feeds = {"x": np.zeros((2, 64), np.float32)}

    assert list(session.run(feeds)) == ["label", "probabilities"]
    assert list(session.run(feeds, ["probabilities"])) == ["probabilities"]
    with pytest.raises(UsageError, match="no output 'probs'"):
        session.run(feeds, ["probs"])


def test_a_run_that_never_ends_is_ended_and_the_session_lives_on(endless):
    session = open_session(endless, threads=1)

    for _ in range(2):
        with pytest.raises(DeadlineError, match=r"after 0\.1 s"):
            session.run(ONE, timeout=0.1)


def test_runs_of_many_threads_end_each_at_its_own_time(endless):
    session = open_session(endless, threads=1)
    ended = []

    def run(timeout):
        with pytest.raises(DeadlineError):
            session.run(ONE, timeout=timeout)
        ended.append(timeout)

    threads = [threading.Thread(target=run, args=(timeout,)) for timeout in (0.9, 0.1, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert ended == [0.1, 0.5, 0.9]


def test_a_run_in_time_is_left_alone_and_many_share_one_watchdog(matmul_onnx):
    session = open_session(matmul_onnx)
    before = threading.active_count()

    for _ in range(50):
        assert session.run(ONE, timeout=30)["scores"].tolist() == [[10, 10, 10]]
    assert threading.active_count() <= before + 1


def test_a_watchdog_without_work_ends_and_comes_back(matmul_onnx, monkeypatch):
    monkeypatch.setattr("mlx_platform.inference.session._IDLE", 0.01)
    session = open_session(matmul_onnx)
    others = set(threading.enumerate())

    for _ in range(2):
        session.run(ONE, timeout=0.01)
        for thread in set(threading.enumerate()) - others:
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"y": np.ones((1, 3), np.float32)},
        {"x": np.ones((1, 4), np.float32)},
        {"x": np.ones((1, 3), np.float64)},
        {"x": np.ones(3, np.float32)},
    ],
)
def test_feeds_that_do_not_fit_are_the_callers_fault(matmul_onnx, feeds):
    with pytest.raises(UsageError, match="refused the input"):
        open_session(matmul_onnx).run(feeds)


def test_an_index_beyond_the_table_is_the_callers_fault(saved, graph):
    model = graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        {"i": (INT64, ["n"])},
        {"y": (FLOAT, ["n"])},
        {"table": np.arange(3, dtype=np.float32)},
    )

    with pytest.raises(UsageError, match="refused the input"):
        open_session(saved(model)).run({"i": np.array([7])})


def test_memory_that_is_not_there_is_no_fault_of_the_caller(saved, graph):
    model = graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"])],
        {"shape": (INT64, [2])},
        {"y": (FLOAT, ["a", "b"])},
    )

    with pytest.raises(OutOfMemoryError, match="Memory ran out on cpu") as caught:
        open_session(saved(model)).run({"shape": np.array([2**30, 2**30])})
    assert not isinstance(caught.value, OverLimitError)  # nobody has set a limit


def test_what_runs_have_left_in_the_arena_can_be_given_back(saved, graph):
    model = graph(
        [
            helper.make_node("Exp", ["x"], ["a"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
            helper.make_node("ReduceSum", ["c"], ["y"], keepdims=1),
        ],
        {"x": (FLOAT, ["n", "k"])},
        {"y": (FLOAT, ["n", 1])},
    )
    session = open_session(saved(model), device="cpu", memory=16 * 2**20)
    small, large = (np.zeros((1, size), np.float32) for size in (300_000, 800_000))
    session.run({"x": small})

    with pytest.raises(OverLimitError):
        session.run({"x": large})
    session.run({"x": small[:, :1]}, timeout=10, shrink=True)
    assert session.run({"x": large})["y"].shape == (1, 1)


def test_files_that_are_no_network_are_sentences(tmp_path):
    with pytest.raises(NotFoundError):
        open_session(tmp_path / "absent.onnx")
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="cannot be loaded"):
        open_session(tmp_path / "m.onnx")


def test_telemetry_is_off_before_the_runtime_is_imported(matmul_onnx):
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from mlx_platform.inference.session import open_session\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "open_session(Path(sys.argv[1]))\n"
        "print(os.environ['ORT_DISABLE_TELEMETRY'])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}

    done = subprocess.run(
        [sys.executable, "-c", script, str(matmul_onnx)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )

    assert done.stdout == "1\n"


class _FakeSession:
    """What ONNX Runtime would report on another machine, around a real session on this one."""

    comes_up = "CUDAExecutionProvider"
    asked: list[object] = []  # noqa: RUF012 - one list for the test that reads it

    def __init__(self, path, options, providers, enable_fallback):
        assert not enable_fallback
        self._real = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.asked[:] = providers

    def get_providers(self):
        return [self.comes_up, "CPUExecutionProvider"]

    def __getattr__(self, name):
        return getattr(self._real, name)


@pytest.fixture
def another_machine(monkeypatch):
    """ONNX Runtime as it looks with the GPU build: CUDA is offered, and comes up or not."""

    def simulate(comes_up):
        class Simulated:
            InferenceSession = type("Session", (_FakeSession,), {"comes_up": comes_up})

            @staticmethod
            def get_available_providers():
                return ["CUDAExecutionProvider", "CPUExecutionProvider"]

            def __getattr__(self, name):
                return getattr(onnxruntime, name)

        monkeypatch.setattr("mlx_platform.inference.session.runtime", Simulated)

    return simulate


def test_auto_takes_cuda_first_where_it_is_offered(another_machine, matmul_onnx):
    another_machine("CUDAExecutionProvider")
    session = open_session(matmul_onnx)

    assert (session.device, session.providers[0]) == ("cuda", "CUDAExecutionProvider")
    assert [name if isinstance(name, str) else name[0] for name in _FakeSession.asked] == [
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]


def test_auto_says_cpu_where_cuda_is_offered_and_does_not_come_up(another_machine, matmul_onnx):
    another_machine("CPUExecutionProvider")
    session = open_session(matmul_onnx)

    assert (session.device, session.fell_back) == ("cpu", "cuda")


def test_a_gpu_session_says_how_many_nodes_each_provider_got(another_machine, matmul_onnx):
    another_machine("CUDAExecutionProvider")

    assert open_session(matmul_onnx, device="cuda").nodes == {"CPUExecutionProvider": 1}


def test_a_gpu_goes_by_its_number_and_its_memory_is_bounded(another_machine, matmul_onnx):
    another_machine("CUDAExecutionProvider")
    session = open_session(matmul_onnx, device="cuda:1", memory=2**30)

    (provider, options), cpu = _FakeSession.asked
    assert (session.device, provider, cpu) == ("cuda:1", "CUDAExecutionProvider", "CPUExecutionProvider")
    assert (options["device_id"], options["gpu_mem_limit"]) == ("1", str(2**30))
    assert options["arena_extend_strategy"] == "kSameAsRequested"


def test_a_session_keeps_within_its_own_memory(saved, graph):
    model = graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"])],
        {"shape": (INT64, [1])},
        {"y": (FLOAT, ["a"])},
    )
    path = saved(model)
    small = open_session(path, device="cpu", memory=8 * 2**20)
    large = open_session(path, device="cpu", memory=256 * 2**20)
    feeds = {"shape": np.array([2**24])}

    with pytest.raises(OverLimitError):
        small.run(feeds)
    assert len(large.run(feeds)["y"]) == 2**24
    assert len(small.run({"shape": np.array([2**16])})["y"]) == 2**16


def test_a_closed_session_says_so(matmul_onnx):
    session = open_session(matmul_onnx)
    session.close()

    with pytest.raises(DeviceError, match="was closed"):
        session.run(ONE)


def test_a_run_much_larger_than_most_gives_its_memory_back(saved, graph):
    path = saved(graph([helper.make_node("Neg", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}))
    session = open_session(path, device="cpu")
    large, usual = {"x": np.ones(2**23, np.float32)}, {"x": np.ones(8, np.float32)}

    assert not session._is_spike(usual)
    assert session._is_spike(large)
    assert session.run(large, timeout=20)["y"].sum() == -(2**23)
    assert not [_ for _ in range(100) if session._is_spike(large)][60:]


def test_cuda_that_was_asked_for_never_becomes_the_cpu_silently(another_machine, matmul_onnx):
    another_machine("CPUExecutionProvider")

    with pytest.raises(UnavailableError, match="was asked for, but CPUExecutionProvider came up"):
        open_session(matmul_onnx, device="cuda")
