"""What a user writes with FastAPI: a typed body, a synchronous endpoint."""

import sys

import numpy as np
import uvicorn
from fastapi import FastAPI
from session import open_session

MODEL, PORT = sys.argv[1], int(sys.argv[2])
session = open_session(MODEL)
names = {tensor.name: np.float32 if "float" in tensor.type else np.int64 for tensor in session.get_inputs()}
app = FastAPI()


@app.post("/predict")
def predict(body: dict[str, list[float] | list[int]]) -> dict[str, list[list[float]]]:
    feeds = {name: np.asarray([body[name]], kind) for name, kind in names.items()}
    return {"y": session.run(None, feeds)[0].tolist()}


uvicorn.run(
    app, host="127.0.0.1", port=PORT, loop="uvloop", http="httptools", access_log=False, log_level="error"
)
