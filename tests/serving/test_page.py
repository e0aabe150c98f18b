"""The pages for people, and images as bodies, on a real server."""

import base64
import html.parser
import json
import shlex
import subprocess

import cv2
import numpy as np
import pytest

from mlx_platform.serving.page import describe_in_html, describe_routes
from mlx_platform.serving.routes import ROUTES
from mlx_platform.serving.signature import Signature


def encoded(grey, kind=".png"):
    return cv2.imencode(kind, np.full((6, 8, 3), grey, np.uint8))[1].tobytes()


class Reader(html.parser.HTMLParser):
    """The text of a page, and what it would load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.text, self.tags, self.loads = "", [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in {"src", "href"}]

    def handle_data(self, data):
        self.text += data


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


@pytest.mark.parametrize("kind", [".png", ".jpg", ".bmp"])
def test_an_image_is_a_body_of_its_own(shared, kind):
    subtype = {".jpg": "jpeg"}.get(kind, kind[1:])
    reply = shared("picture").request(
        "POST", "/predict", encoded(102, kind), {"Content-Type": f"Image/{subtype}"}
    )
    assert reply.status == 200, reply.body
    assert reply.json["predictions"] == [{"brightness": pytest.approx(0.4, abs=1e-3)}]
    assert reply.json["model"] == "picture"


def test_an_image_in_base64_gets_the_same_answer(shared):
    rows = [{"photo": base64.b64encode(encoded(grey)).decode()} for grey in (0, 255)]
    answers = shared("picture").post("/predict", {"rows": rows}).json["predictions"]
    assert [answer["brightness"] for answer in answers] == [0.0, 1.0]


@pytest.mark.parametrize(
    "body", [b"", b"no image", encoded(7)[:40], b"<svg xmlns='http://www.w3.org/2000/svg'/>"]
)
def test_what_is_no_image_is_refused(shared, body):
    reply = shared("picture").request("POST", "/predict", body, {"Content-Type": "image/png"})
    assert reply.status == 400
    assert "photo" in reply.json["error"]


def test_a_model_of_other_columns_takes_no_image(shared):
    for network in ("table", "affine"):
        reply = shared(network).request("POST", "/predict", encoded(7), {"Content-Type": "image/png"})
        assert reply.status == 415
    infer = "/v2/models/picture/infer"
    assert shared("picture").request("POST", infer, encoded(7), {"Content-Type": "image/png"}).status == 415


def test_the_page_shows_columns_tensors_routes_and_requests_that_work(shared):
    server = shared("table")
    reply = server.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    page = read(reply.body.decode())
    assert "script" not in page.tags
    assert page.loads == ["openapi.json"]
    for text in ("table version 3", server.addresses["digest"], "number", "FP32 [?, 4]", *ROUTES):
        assert text in page.text
    commands = [
        line for line in page.text.replace("curl ", "\ncurl ").splitlines() if line.startswith("curl ")
    ]
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.partition("Routes")[0].partition("Tensors:")[0])
        done = subprocess.run([*words[:6], "-s"], capture_output=True, check=True)
        assert "error" not in json.loads(done.stdout)


def test_names_cannot_bring_markup_or_commands_into_a_page(load):
    model = load("affine")
    model.name = "<script>alert(1)</script>'; rm -rf /'"
    signature = Signature.of(model.spec.inputs, model.spec.outputs)
    page = read(describe_in_html(model, signature, 'evil"><img src=x>'))
    assert not {"script", "img"} & set(page.tags)
    assert "\x1b" not in describe_routes(model, signature, "a\x1b[2Jb")
