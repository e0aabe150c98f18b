"""What a user writes with LitServe, with its batching on."""

import sys

import litserve
import numpy as np
from session import open_session

MODEL, PORT = sys.argv[1], int(sys.argv[2])


class Api(litserve.LitAPI):
    def setup(self, device):
        self.session = open_session(MODEL)
        self.names = {
            tensor.name: np.float32 if "float" in tensor.type else np.int64
            for tensor in self.session.get_inputs()
        }

    def decode_request(self, request):
        return {name: np.asarray(request[name], kind) for name, kind in self.names.items()}

    def batch(self, inputs):
        return {name: np.stack([one[name] for one in inputs]) for name in self.names}

    def predict(self, feeds):
        return self.session.run(None, feeds)[0]

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"y": output.tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(host="127.0.0.1", port=PORT, num_api_servers=1, log_level="error", generate_client_file=False)
