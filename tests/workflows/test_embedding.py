"""The embedding model of the semantic cache: found by reference, for the models that may have it."""

import os
import signal
import subprocess
import sys

import orjson
import pytest
from text_models import embedder_package, judge_package

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.serving_settings import SemanticCacheSettings
from mlx_platform.core.settings import load_settings
from mlx_platform.inference.package import open_package
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.embedding import open_embedder

_SETTINGS = """
[serving.cache]
backend = "memory"

[serving.semantic_cache]
models = ["jud*"]
model = "words@production"
timeout_ms = 5000.0
check = 0.0
"""


@pytest.fixture
def context(project, tmp_path):
    """A project with an embedding model in production, and a judge of texts beside it."""
    (project.folder / "mlx.toml").write_text(_SETTINGS)
    lineage = Lineage(dataset_version="", dataset_fingerprint="", git_commit="", params={}, metrics={})
    project.catalog.register("words", open_package(embedder_package(tmp_path / "words")), lineage)
    project.catalog.move("words", "production", 1, kind="promote", actor="ada")
    return make_context(load_settings(start=project.folder))


def test_a_reference_is_resolved_for_models_that_may_have_it(context):
    settings = context.settings.serving.semantic_cache
    with open_embedder(context, settings, "judge", device="cpu") as embedder:
        assert (embedder.name, embedder.version, embedder.columns) == ("words", "1", ("text",))
    with open_embedder(context, settings, "another", device="cpu") as embedder:
        assert embedder is None


def test_without_an_embedding_model_there_is_no_semantic_cache(project):
    for model, error in (("", UsageError), ("words@staging", NotFoundError)):
        settings = SemanticCacheSettings(models=("judge",), model=model)
        with pytest.raises(error), open_embedder(project.context, settings, "judge"):
            pass


def test_a_served_model_answers_a_text_that_means_the_same(context, tmp_path):
    judge = judge_package(tmp_path / "judge")
    arguments = ("serve", str(judge), "--cache", "memory", "--device", "cpu", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_platform.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        cwd=context.settings.folder,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == b"}":
                break
        assert lines, process.stderr.read().decode()
        url = orjson.loads(b"".join(lines))["data"]["url"]
        found = [ask(url, text) for text in ("great film", "great film", "wonderful movie", "awful film")]
        assert found == [("miss", "good"), ("hit", "good"), ("semantic", "good"), ("miss", "bad")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def ask(url, text):
    import urllib.request

    body = orjson.dumps({"rows": [{"text": text, "strictness": [1.0]}]})
    request = urllib.request.Request(f"{url}/predict", body, {"Content-Type": "application/json"})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own server
        return answer.headers["X-Cache"], orjson.loads(answer.read())["predictions"][0]["label"]
