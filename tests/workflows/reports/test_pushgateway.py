import socket

import pytest
from receivers import receiving

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.workflows.reports.pushgateway import check_gateway, push


def test_samples_go_to_the_group_of_their_job():
    with receiving(200) as receiver:
        push(f"{receiver.url}/base/", "mlx_x 1\n", "mlx_drift", {"model": "a/b", "empty": ""})

    (request,) = receiver.requests
    assert request.path.endswith("/base/metrics/job/mlx_drift/model/a%2Fb")
    assert request.body == b"mlx_x 1\n"


def test_a_gateway_that_refuses_is_quoted():
    with receiving(400) as receiver, pytest.raises(UnavailableError, match="answered 400"):
        push(receiver.url, "mlx_x 1\n", "j", {})


def test_a_gateway_that_is_not_there_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match="cannot be reached"):
        push(f"http://127.0.0.1:{port}", "mlx_x 1\n", "j", {})


@pytest.mark.parametrize("url", ["gateway:9091", "ftp://gateway", "http://", "http://h:x", "http://h/?a=b"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError):
        check_gateway(url)
