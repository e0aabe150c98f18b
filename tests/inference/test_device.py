import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.device import Device, choose, parse_device, provider_list

ALL = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("cpu")),
        ("cuda", Device("cuda")),
        ("cuda:0", Device("cuda")),
        ("cuda:3", Device("cuda", 3)),
        ("tensorrt:1", Device("tensorrt", 1)),
    ],
)
def test_devices_have_names_and_gpus_have_numbers(text, device):
    assert parse_device(text) == device
    assert parse_device(str(device)) == device


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:100", "cpu:1", "CUDA", "cuda\n"]
)
def test_what_is_no_device_is_refused(text):
    with pytest.raises(UsageError):
        parse_device(text)


def test_the_closest_name_is_suggested():
    with pytest.raises(UsageError) as caught:
        parse_device("tensort:1")
    assert "'tensorrt'" in caught.value.hint


def test_auto_never_takes_tensorrt():
    assert choose("auto", ALL) == Device("cuda")
    assert choose("auto", ALL[2:]) == Device("cpu")


def test_each_device_asks_for_its_providers_in_a_fixed_order():
    def names(device, available):
        return [p if isinstance(p, str) else p[0] for p in provider_list(parse_device(device), available, 0)]

    assert names("tensorrt", ALL) == ALL
    assert names("cuda", ALL) == ALL[1:]
    assert names("cpu", ALL) == ALL[2:]
    assert names("tensorrt", [ALL[0], ALL[2]]) == [ALL[0], ALL[2]]


def test_no_limit_is_no_option():
    assert "gpu_mem_limit" not in provider_list(Device("cuda"), ALL, 0)[0][1]
    assert provider_list(Device("tensorrt", 1), ALL, 5)[0] == (ALL[0], {"device_id": "1"})
    assert provider_list(Device("tensorrt", 1), ALL, 5)[1][1]["gpu_mem_limit"] == "5"


@pytest.mark.parametrize(("device", "library"), [("cuda", "CUDA"), ("tensorrt", "TensorRT")])
def test_a_device_that_this_runtime_was_not_built_for_is_a_sentence(device, library):
    with pytest.raises(UsageError, match=f"cannot use {library}"):
        choose(device, ALL[2:])
