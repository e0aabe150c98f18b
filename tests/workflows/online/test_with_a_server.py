"""The whole way: a server answers, somebody tells it labels, and the answers are measured."""

import http.client
import signal
import subprocess
import sys
from typing import Any

import orjson
from colour_project import ColourProject
from linear_models import LABELS, colours
from support import clean_environment

from mlx_platform.workflows.evaluate_online import evaluate_online
from mlx_platform.workflows.online.asked import Asked


def post(connection: http.client.HTTPConnection, path: str, body: Any) -> tuple[Any, str]:
    connection.request("POST", path, orjson.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = orjson.loads(response.read())
    assert response.status == 200, content
    return content, response.getheader("x-request-id", "")


def announced(process: "subprocess.Popen[bytes]") -> str:
    lines: list[bytes] = []
    for line in process.stdout or ():
        lines.append(line)
        if line.rstrip() == b"}":
            break
    url: str = orjson.loads(b"".join(lines))["data"]["url"]
    return url.removeprefix("http://")


def test_labels_that_a_server_was_told_are_joined_to_what_it_answered(project: ColourProject) -> None:
    command = [
        sys.executable,
        "-m",
        "mlx_platform.cli",
        "serve",
        "colours/1",
        "--traffic",
        "traffic",
        "--json",
    ]
    environment = clean_environment(HOME=str(project.folder), MLX_CACHE_DIR=str(project.folder / "cache"))
    features, _codes = colours(40)
    with subprocess.Popen(command, cwd=project.folder, stdout=subprocess.PIPE, env=environment) as process:
        try:
            connection = http.client.HTTPConnection(announced(process), timeout=30)
            told = []
            for place, row in enumerate(features.tolist()):
                cells = {f"x{index}": cell for index, cell in enumerate(row)}
                answer, request_id = post(connection, "/predict", {"rows": [cells]})
                said = answer["predictions"][0]["label"]
                wrong = LABELS[(LABELS.index(said) + 1) % 3]
                told.append({"id": request_id, "outcomes": {"label": wrong if place < 10 else said}})
            kept, _id = post(connection, "/feedback", {"feedback": told[:30], "source": "reviewers"})
            connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert kept["kept"] == 30

    result = evaluate_online(project.context, Asked("colours/1", project.folder / "traffic"))

    assert result.data["rows"] == {"answered": 40, "labelled": 30, "coverage": 0.75}
    assert result.data["metrics"]["accuracy"]["value"] == 20 / 30
    assert result.data["delay_seconds"]["known"] == 30
    assert not any(result.data["labels"][fate]["count"] for fate in ("unmatched", "unclear", "again"))
