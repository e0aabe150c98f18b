"""Schemathesis against a real server: on the description that it serves, and on the protocol's own.

The protocol's description is no part of this project. MLServer, which was written along with it, carries a
copy in its package; the variable `OIP_OPENAPI` names another file.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

NAMES = {"model": "table", "model_name": "table", "version": "3", "model_version": "3"}
LANGUAGE_MODELS = ("infer_stream", "generate", "generate_stream")  # an extension, which this server has not
# What a model takes is known to no description that is written before the model.
TOO_MUCH_TO_KNOW = "positive_data_acceptance"


@pytest.fixture(scope="module")
def schemathesis(peer_environment):
    return peer_environment("schemathesis", "schemathesis==4.32.0").with_name("schemathesis")


def named(description):
    """The description of this server: its paths lead to the model that is there."""
    operations = [
        operation
        for path in description["paths"].values()
        for operation in (path, *(value for value in path.values() if isinstance(value, dict)))
    ]
    for operation in operations:
        for parameter in operation.get("parameters", ()):
            if parameter.get("in") == "path":
                parameter["schema"] = {"type": "string", "enum": [NAMES[parameter["name"].lower()]]}
    return description


def conforms(schemathesis, folder, server, description, *options):
    path = folder / "openapi.json"
    path.write_text(json.dumps(description))
    command = [str(schemathesis), "run", str(path), "--url", server.addresses["url"], "--no-color", *options]
    command += ["--exclude-checks", TOO_MUCH_TO_KNOW, "--seed", "1", "--max-examples", "4", "--phases"]
    environment = dict(os.environ) | {"SCHEMATHESIS_REPORT": "false"}
    done = subprocess.run(
        [*command, "coverage,fuzzing"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert server.get("/v2/health/ready").status == 200


def test_the_server_does_what_its_own_description_says(tmp_path, shared, schemathesis):
    server = shared("table")
    description = named(server.get("/openapi.json").json)
    conforms(schemathesis, tmp_path, server, description)


@pytest.fixture(scope="module")
def protocol(peer_environment):
    """The description of the Open Inference Protocol: its paths without those of language models."""
    if "OIP_OPENAPI" in os.environ:
        path = Path(os.environ["OIP_OPENAPI"])
    else:
        python = peer_environment("mlserver", "--no-deps", "mlserver==1.7.1")
        path = next(python.parents[1].rglob("mlserver/rest/openapi/dataplane.json"))
    text = path.read_text(encoding="utf-8").replace("${", "{")
    # JSON has no bytes: MLServer means text, which the protocol has there.
    description = yaml.safe_load(text.replace('"type": "bytes"', '"type": "string"'))
    known = {
        path: operations
        for path, operations in description["paths"].items()
        if not path.endswith(LANGUAGE_MODELS)
    }
    return description | {"paths": known}


def test_the_server_does_what_the_protocol_says(tmp_path, shared, schemathesis, protocol):
    assert any(path.endswith("/infer") for path in protocol["paths"])

    # It describes only some of the statuses that it means: anything beyond is no fault of a server.
    conforms(
        schemathesis,
        tmp_path,
        shared("table"),
        named(protocol),
        "--checks",
        "not_a_server_error,response_schema_conformance,content_type_conformance",
    )
