"""Triton's own clients, from an environment of their own, against a real server."""

import json
import subprocess
from pathlib import Path

import pytest

SYNCHRONOUS = ("http", "grpc")


@pytest.fixture(scope="module")
def seen(start_lasting_server, peer_environment):
    python = peer_environment("tritonclient", "tritonclient[http,grpc]==2.73.0")
    server = start_lasting_server("kinds")
    script = Path(__file__).with_name("triton_peer.py")
    command = [str(python), str(script), json.dumps(server.addresses)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("client", SYNCHRONOUS)
@pytest.mark.parametrize("form", ["binary", "gzip", "deflate", "parallel"])
def test_every_kind_of_tensor_comes_back_as_it_went_in(seen, client, form):
    assert seen[client][form] is True


def test_json_and_streams_carry_tensors_as_well(seen):
    assert seen["http"]["json"] is True
    assert seen["grpc"]["stream"] is True


@pytest.mark.parametrize("client", SYNCHRONOUS)
def test_the_outputs_and_the_id_that_were_asked_for_come_back(seen, client):
    assert (seen[client]["some"], seen[client]["id"]) == (["f_out", "i_out"], "q")


@pytest.mark.parametrize("client", SYNCHRONOUS)
def test_health_metadata_configuration_statistics_and_index_are_understood(seen, client):
    found = seen[client]
    assert found["health"] == [True, True, True]
    assert (found["server"], found["config"], found["index"]) == ("mlx", "kinds", "READY")
    assert found["inputs"] == sorted("tfiubdh")
    assert (found["successes"], found["batches"]) == (True, True)
    assert found["load"]


@pytest.mark.parametrize("client", SYNCHRONOUS)
def test_refusals_reach_the_client_in_words(seen, client):
    found = seen[client]
    assert "registry decides" in found["unload"]
    assert "another model" in found["unknown"]
    assert "missing" in found["missing"]
    assert "deadline" in found["late"]


@pytest.mark.parametrize("client", ["http.aio", "grpc.aio"])
def test_asynchronous_clients_work_as_well(seen, client):
    assert seen[client] == {"parallel": True, "health": [True, True], "metadata": ["3"]}
