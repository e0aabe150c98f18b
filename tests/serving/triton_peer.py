"""What Triton's own clients see of a server: `triton_peer.py ADDRESSES`, run where they are installed.

The server serves the network `kinds`, which gives every input back. Prints a JSON object by client.
"""

import asyncio
import json
import sys

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

MODEL = "kinds"
INPUTS = {
    "t": ("BYTES", np.array([[""], ["\u00fc"], ["abc"]], dtype=object)),
    "f": ("FP32", np.array([[0.1, -0.0], [1e-38, 3.4e38], [1, 2]], np.float32)),
    "i": ("INT64", np.array([2**63 - 1, -(2**63), 0], np.int64)),
    "u": ("UINT8", np.array([0, 255, 7], np.uint8)),
    "b": ("BOOL", np.array([True, False, True])),
    "d": ("FP64", np.array([0.1, 1e300, -1.0], np.float64)),
    "h": ("FP16", np.array([0.5, -2.0, 0.0], np.float16)),
}


def inputs(module, **options):
    made = []
    for name, (datatype, array) in INPUTS.items():
        tensor = module.InferInput(name, list(array.shape), datatype)
        # FP16 has no form in JSON.
        tensor.set_data_from_numpy(array, **({} if datatype == "FP16" else options))
        made.append(tensor)
    return made


def agrees(result, names=INPUTS):
    for name in names:
        got, want = result.as_numpy(f"{name}_out"), INPUTS[name][1]
        if name == "t":
            got = np.array([cell.decode() if isinstance(cell, bytes) else cell for cell in got.flat], object)
            got = got.reshape(want.shape)
        if got.shape != want.shape or not np.array_equal(got, want):
            return f"{name}: {got!r}"
    return True


def only(module, *names, **options):
    return [module.InferRequestedOutput(f"{name}_out", **options) for name in names]


def words(error):
    return error.message() if isinstance(error, InferenceServerException) else repr(error)


def refusal(call):
    try:
        call()
    except InferenceServerException as error:
        return words(error)
    return None


def http(address):
    module = tritonclient.http
    with module.InferenceServerClient(address.removeprefix("http://"), concurrency=4) as client:
        some = only(module, "i", "f", binary_data=False)
        answer = client.infer(MODEL, inputs(module), outputs=some, request_id="q", model_version="3")
        many = [client.async_infer(MODEL, inputs(module)) for _ in range(8)]
        seen = {
            "binary": agrees(client.infer(MODEL, inputs(module))),
            "json": agrees(client.infer(MODEL, inputs(module, binary_data=False), outputs=some), ("i", "f")),
            "some": sorted(output["name"] for output in answer.get_response()["outputs"]),
            "id": answer.get_response()["id"],
            "parallel": all(agrees(call.get_result()) is True for call in many),
        }
        for way in ("gzip", "deflate"):
            options = {"request_compression_algorithm": way, "response_compression_algorithm": way}
            seen[way] = agrees(client.infer(MODEL, inputs(module), **options))
        return seen | common(client, module)


def grpc(address):
    module = tritonclient.grpc
    with module.InferenceServerClient(address) as client:
        answer = client.infer(MODEL, inputs(module), outputs=only(module, "i", "f"), request_id="q")
        done = []
        for _ in range(8):
            client.async_infer(MODEL, inputs(module), lambda result, error: done.append(error or result))
        seen = {
            "binary": agrees(client.infer(MODEL, inputs(module))),
            "some": sorted(output.name for output in answer.get_response().outputs),
            "id": answer.get_response().id,
        }
        for way in ("gzip", "deflate"):
            seen[way] = agrees(client.infer(MODEL, inputs(module), compression_algorithm=way))
        seen |= common(client, module, as_json=True)
        streamed = []
        client.start_stream(lambda result, error: streamed.append(error or result))
        for _ in range(4):
            client.async_stream_infer(MODEL, inputs(module))
        client.stop_stream()
    seen["parallel"] = len(done) == 8 and all(agrees(result) is True for result in done)
    seen["stream"] = len(streamed) == 4 and all(agrees(result) is True for result in streamed)
    return seen


def common(client, module, **options):
    wrong = inputs(module)[:1]
    loaded = client.load_model(MODEL)
    stats = client.get_inference_statistics(MODEL, "3", **options)["model_stats"][0]
    index = client.get_model_repository_index(**options)
    return {
        "health": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(MODEL, "3")],
        "server": client.get_server_metadata(**options)["name"],
        "inputs": sorted(spec["name"] for spec in client.get_model_metadata(MODEL, **options)["inputs"]),
        "config": client.get_model_config(MODEL, **options).get("config", {}).get("name")
        or client.get_model_config(MODEL, **options).get("name"),
        "batches": sum(int(batch["compute_infer"]["count"]) for batch in stats["batch_stats"])
        == int(stats["execution_count"])
        > 0,
        "successes": int(stats["inference_stats"]["success"]["count"]) > 0,
        "index": (index if isinstance(index, list) else index["models"])[0]["state"],
        "load": loaded is None,
        "unload": refusal(lambda: client.unload_model(MODEL)),
        "unknown": refusal(lambda: client.infer("nothing", inputs(module))),
        "missing": refusal(lambda: client.infer(MODEL, wrong)),
        "late": refusal(lambda: client.infer(MODEL, inputs(module), timeout=1)),
    }


async def http_aio(address):
    module = tritonclient.http.aio
    async with module.InferenceServerClient(address.removeprefix("http://")) as client:
        many = await asyncio.gather(*[client.infer(MODEL, inputs(tritonclient.http)) for _ in range(8)])
        return {
            "parallel": all(agrees(result) is True for result in many),
            "health": [await client.is_server_ready(), await client.is_model_ready(MODEL)],
            "metadata": (await client.get_model_metadata(MODEL))["versions"],
        }


async def grpc_aio(address):
    module = tritonclient.grpc.aio
    async with module.InferenceServerClient(address) as client:
        many = await asyncio.gather(*[client.infer(MODEL, inputs(tritonclient.grpc)) for _ in range(8)])
        return {
            "parallel": all(agrees(result) is True for result in many),
            "health": [await client.is_server_ready(), await client.is_model_ready(MODEL)],
            "metadata": list((await client.get_model_metadata(MODEL)).versions),
        }


if __name__ == "__main__":
    where = json.loads(sys.argv[1])
    seen = {
        "http": http(where["url"]),
        "grpc": grpc(where["grpc_url"]),
        "http.aio": asyncio.run(http_aio(where["url"])),
        "grpc.aio": asyncio.run(grpc_aio(where["grpc_url"])),
    }
    sys.stdout.write(json.dumps(seen))
