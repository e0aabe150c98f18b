"""What a user writes with MLServer, with its adaptive batching on."""

import asyncio
import sys

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
from session import open_session

MODEL, PORT = sys.argv[1], int(sys.argv[2])


class Onnx(MLModel):
    async def load(self):
        self.session = open_session(MODEL)
        self.names = [tensor.name for tensor in self.session.get_outputs()]
        return True

    async def predict(self, payload):
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        outputs = zip(self.names, self.session.run(None, feeds), strict=True)
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(name, value) for name, value in outputs]
        )


async def main():
    settings = Settings(
        host="127.0.0.1",
        http_port=PORT,
        grpc_port=PORT + 1,
        metrics_port=PORT + 2,
        parallel_workers=0,
        debug=False,
    )
    server = MLServer(settings)
    model = ModelSettings(name="m", implementation=Onnx, max_batch_size=32, max_batch_time=0.005)
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main())
