import json
import subprocess

import pytest
from google.protobuf import descriptor_pool

from mlx_platform.serving.grpc.messages import message_classes

_DUMP = """
import json
from tritonclient.grpc import service_pb2, model_config_pb2

def walk(messages, prefix):
    for message in messages:
        name = prefix + message.name
        yield name, {field.name: [field.number, field.type, field.is_repeated] for field in message.fields}
        yield from walk(message.nested_types, name + ".")

found = {}
for file in (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR):
    found.update(walk(file.message_types_by_name.values(), "inference."))
print(json.dumps(found))
"""
_ENUM, _INT32 = 14, 5


@pytest.fixture(scope="module")
def theirs(peer_environment):
    python = peer_environment("tritonclient", "tritonclient[http,grpc]==2.73.0")
    done = subprocess.run([python, "-c", _DUMP], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_field_has_the_number_and_kind_that_clients_know(theirs):
    compared = 0
    for name, message in message_classes().items():
        if not name.startswith("inference."):
            continue
        for field in message.DESCRIPTOR.fields:
            number, kind, repeated = theirs[name][field.name]
            kind = _INT32 if kind == _ENUM else kind
            assert [field.number, field.type, field.is_repeated] == [number, kind, repeated], (
                name,
                field.name,
            )
            compared += 1
    assert compared > 100


def test_nothing_gets_into_the_pool_that_everybody_shares():
    message_classes()
    for name in ("inference.ModelInferRequest", "grpc.health.v1.HealthCheckRequest"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)
