"""A model that loses its device, and gets it back; the GPUs are simulated, the networks are real."""

import shutil
import threading

import numpy as np
import pytest
from simulated_gpu import VARIABLE, Gpus, simulated_runtime

from mlx_platform.core.errors import DeadlineError, UsageError
from mlx_platform.core.serving_settings import DegradeSettings, ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.inference.session import DeviceError, OutOfMemoryError, OverLimitError, open_session
from mlx_platform.serving.devices.chain import ChainPolicy, DeviceChain
from mlx_platform.serving.devices.plan import device_chain

X = {"x": np.array([[1, 2, 3, 4]], np.float32)}
OUT = ("probabilities",)
ALWAYS = 30.0


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    gpus = Gpus(tmp_path / "gpus")
    monkeypatch.setenv(VARIABLE, str(gpus.path))
    monkeypatch.setattr("mlx_platform.inference.session.runtime", simulated_runtime)
    return gpus


@pytest.fixture
def chain_of(gpus, packages):
    chains = []

    def make(network, *devices, home="cuda", probe=ALWAYS):
        model = Model.load(open_package(packages[network]), name=network, device=home, threads=1)
        policy = ChainPolicy(devices, probe=probe)
        chain = DeviceChain(model, policy, lambda path, device: open_session(path, device=device))
        chain.prepare()
        chains.append(chain)
        return chain

    yield make
    for chain in chains:
        chain.close()


def counts(chain, name):
    return {dict(s.labels).get("device", ""): s.value for s in chain.samples() if s.name == name}


def test_a_model_runs_on_its_own_device_while_that_works(chain_of):
    chain = chain_of("affine", "cpu")
    assert chain.run(X, OUT, 5)["probabilities"].shape == (1, 3)
    assert (chain.degraded, chain.down, chain.devices) == ("", False, ("cuda", "cpu"))
    assert counts(chain, "mlx_device_active") == {"cuda": 1, "cpu": 0}


def test_a_session_that_breaks_is_made_anew_on_the_same_device(chain_of, gpus):
    chain = chain_of("affine", "cpu")
    right = chain.run(X, OUT, 5)["probabilities"]
    gpus.set(cuda="shaken")
    np.testing.assert_array_equal(chain.run(X, OUT, 5)["probabilities"], right)
    assert (chain.degraded, chain.rebuilds) == ("", 1)
    assert counts(chain, "mlx_device_failures")["cuda"] == 1


def test_a_lost_device_gives_way_to_the_next_that_works(chain_of, gpus):
    chain = chain_of("affine", "cuda:1", "cpu")
    right = chain.run(X, OUT, 5)["probabilities"]
    gpus.set(cuda="lost")
    np.testing.assert_array_equal(chain.run(X, OUT, 5)["probabilities"], right)
    assert chain.degraded == "cuda:1"
    gpus.set(cuda="lost", cuda_1="lost")
    np.testing.assert_array_equal(chain.run(X, OUT, 5)["probabilities"], right)
    assert (chain.degraded, chain._model.session.device) == ("cpu", "cpu")
    assert counts(chain, "mlx_device_moves") == {"cuda": 0, "cuda:1": 1, "cpu": 1, "none": 0}
    assert counts(chain, "mlx_degraded") == {"": 2}


def test_tensorrt_gives_way_to_cuda_before_the_cpu(chain_of, gpus):
    chain = chain_of("affine", "cuda", "cpu", home="tensorrt")
    gpus.set(tensorrt="lost")
    chain.run(X, OUT, 5)
    assert chain.degraded == "cuda"


def test_a_device_that_comes_up_as_another_is_not_taken(chain_of, gpus):
    chain = chain_of("affine", "cuda:1", "cpu")
    gpus.set(cuda="lost", cuda_1="absent")
    chain.run(X, OUT, 5)
    assert chain.degraded == "cpu"


def test_without_another_device_the_model_is_down_until_its_own_is_back(chain_of, gpus):
    chain = chain_of("affine", probe=0.01)
    gpus.set(cuda="lost")
    with pytest.raises(DeviceError, match="No device"):
        chain.run(X, OUT, 5)
    assert (chain.down, chain.degraded) == (True, "none")
    with pytest.raises(DeviceError, match="at the moment"):
        chain.run(X, OUT, 5)
    gpus.set()
    chain._prober.join(20)
    assert (chain.down, chain.degraded) == (False, "")
    assert chain.run(X, OUT, 5)["probabilities"].shape == (1, 3)


def test_the_way_back_goes_to_the_best_device_that_recovered(chain_of, gpus):
    chain = chain_of("affine", "cuda:1", "cpu", probe=0.01)
    gpus.set(cuda="lost", cuda_1="lost")
    chain.run(X, OUT, 5)
    assert chain.degraded == "cpu"
    prober = chain._prober
    gpus.set()
    prober.join(20)
    assert (chain.degraded, chain._model.session.device) == ("", "cuda")


def test_an_input_that_the_network_refuses_costs_no_device(chain_of):
    chain = chain_of("lookup", "cpu")
    with pytest.raises(UsageError):
        chain.run({"i": np.array([[99]])}, ("y",), 5)
    assert chain.run({"i": np.array([[1]])}, ("y",), 5)["y"].tolist() == [[11]]
    assert (chain.degraded, chain.rebuilds) == ("", 0)


def test_an_input_that_breaks_a_healthy_device_is_refused_and_costs_none(chain_of, monkeypatch):
    chain = chain_of("affine", "cpu")
    session = chain._model.session
    run = session.run

    def break_at_seven(feeds, outputs=None, *, timeout=None, shrink=False):
        if feeds["x"][0, 0] == 7:
            raise DeviceError("CUDA failure 710")
        return run(feeds, outputs, timeout=timeout)

    monkeypatch.setattr(session, "run", break_at_seven)
    with pytest.raises(UsageError, match="cannot run these inputs"):
        chain.run({"x": np.full((1, 4), 7, np.float32)}, OUT, 5)
    assert (chain.degraded, chain._model.session) == ("", session)


def test_full_memory_is_passed_on_and_the_device_stays(chain_of, gpus):
    chain = chain_of("affine", "cpu")
    gpus.set(cuda="full")
    with pytest.raises(OutOfMemoryError):
        chain.run({"x": np.zeros((2, 4), np.float32)}, OUT, 5)
    assert chain.run(X, OUT, 5)["probabilities"].shape == (1, 3)
    assert (chain.degraded, chain.out_of_memory, chain.rebuilds) == ("", 1, 0)


def test_a_row_that_is_too_large_for_a_device_does_not_cost_it(chain_of, gpus):
    chain = chain_of("affine", "cpu")
    session = chain._model.session
    gpus.set(cuda="small")
    for _ in range(5):
        with pytest.raises(OverLimitError):
            chain.run({"x": np.full((1, 4), 7, np.float32)}, OUT, 5)
    assert chain.run(X, OUT, 5)["probabilities"].shape == (1, 3)
    assert (chain.degraded, chain._model.session, chain.failures["cuda"]) == ("", session, 0)


def test_a_device_without_memory_for_a_single_row_is_made_anew(chain_of, monkeypatch):
    chain = chain_of("affine", "cpu")

    def never(feeds, outputs=None, *, timeout=None, shrink=False):
        raise OutOfMemoryError("Memory ran out on cuda.")

    monkeypatch.setattr(chain._model.session, "run", never)
    for _ in range(3):
        with pytest.raises(OutOfMemoryError):
            chain.run(X, OUT, 5)
    assert chain.run(X, OUT, 5)["probabilities"].shape == (1, 3)
    assert (chain.rebuilds, chain.degraded) == (1, "")


def test_many_threads_that_meet_a_lost_device_replace_it_once(chain_of, gpus):
    chain = chain_of("affine", "cpu")
    gpus.set(cuda="lost")
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(chain.run(X, OUT, 20)["probabilities"]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 8
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert counts(chain, "mlx_device_moves")["cpu"] == 1


def test_a_run_that_is_too_late_is_no_fault_of_the_device(chain_of):
    chain = chain_of("countdown", "cpu")
    with pytest.raises(DeadlineError):
        chain.run({"n": np.array([[2**40]])}, ("y",), 0.1)
    assert (chain.degraded, chain.rebuilds) == ("", 0)


def test_the_chain_of_settings_holds_what_this_runtime_knows(packages):
    model = Model.load(open_package(packages["affine"]), device="cpu", threads=1)
    assert device_chain(model, ServingSettings()).devices == ("cpu",)
    with pytest.raises(UsageError, match="no device"):
        device_chain(model, ServingSettings(degrade=DegradeSettings(devices=("gpu",))))


def test_no_session_is_made_of_files_that_changed_since_the_start(gpus, packages, tmp_path):
    folder = tmp_path / "package"
    shutil.copytree(packages["affine"], folder)
    model = Model.load(open_package(folder), device="cuda", threads=1)
    chain = device_chain(model, ServingSettings())
    chain.prepare()
    shutil.copy(packages["identity"] / "model.onnx", folder / "model.onnx")
    gpus.set(cuda="shaken")
    with pytest.raises(DeviceError):
        chain.run(X, OUT, 5)
    chain.close()


def test_the_chain_of_settings_goes_over_all_devices_of_the_machine(gpus, packages):
    model = Model.load(open_package(packages["affine"]), device="tensorrt", threads=1)
    chain = device_chain(model, ServingSettings())
    chain.prepare()
    gpus.set(tensorrt="lost", cuda="lost")
    chain.run(X, OUT, 5)
    chain.close()
    assert (chain.devices, chain.degraded) == (("tensorrt", "cuda", "cpu"), "cpu")
