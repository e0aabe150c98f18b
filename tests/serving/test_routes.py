import inspect

import orjson
import pytest

from mlx_platform.serving import admin, app, exposition
from mlx_platform.serving.app import _OPENAPI
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.routes import ROUTES, RouteTable, check_method

DOCUMENT = orjson.loads(_OPENAPI.read_bytes())


def test_the_openapi_document_describes_exactly_the_routes():
    described = {
        path: [method.upper() for method in operations] for path, operations in DOCUMENT["paths"].items()
    }
    assert described == {path: [method] for path, method in ROUTES.items()}


def test_every_reference_of_the_openapi_document_leads_somewhere():
    def references(value):
        if isinstance(value, dict):
            yield from [value["$ref"]] if "$ref" in value else []
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = list(references(DOCUMENT))
    assert found
    for reference in found:
        target = DOCUMENT
        for piece in reference.removeprefix("#/").split("/"):
            target = target[piece]


def test_path_parameters_are_described_where_a_path_has_them():
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            named = {entry["name"] for entry in operation.get("parameters", ()) if entry.get("in") == "path"}
            assert named == {piece[1:-1] for piece in path.split("/") if piece.startswith("{")}


@pytest.mark.parametrize(
    ("path", "template", "model"),
    [
        (b"/v2/models/a%20b%2Fc/infer", "/v2/models/{model}/infer", "a b/c"),
        (b"/v2/models/a%20b/c/infer", "/v2/models/{model}/infer", "a b/c"),
        (b"/v2/models/%61%20b%2fc/infer", "/v2/models/{model}/infer", "a b/c"),
        (b"/v2/models/other", "/v2/models/{model}", "other"),
        (b"/v2/models/%ff", "/v2/models/{model}", "\ufffd"),
        (b"/v2/models/x/versions/7/ready", "/v2/models/{model}/versions/{version}/ready", "x"),
    ],
)
def test_quoted_names_stay_one_piece_of_a_path(path, template, model):
    match = RouteTable("a b/c", "3").find(path)
    assert match is not None
    assert (match.template, match.parameters["model"]) == (template, model)


@pytest.mark.parametrize(
    "path",
    [b"", b"//", b"/v2//", b"/V2", b"/predict/", b"/v2/models", b"/v2/models/x/y/z", b"/..", b"/%2e%2e"],
)
def test_what_is_no_route_is_none(path):
    with pytest.raises(Refusal) as caught:
        check_method(RouteTable("m", "3").find(path), "GET")
    assert caught.value.status == 404


def test_a_route_takes_its_method_and_head_where_it_takes_get():
    table = RouteTable("m", "3")
    assert check_method(table.find(b"/v2"), "HEAD").template == "/v2"
    for path, method in ((b"/v2", "POST"), (b"/predict", "GET"), (b"/predict", "HEAD"), (b"/", "TRACE")):
        with pytest.raises(Refusal) as caught:
            check_method(table.find(path), method)
        assert caught.value.status == 405


def test_what_the_admin_listener_tells_is_not_on_the_public_one():
    assert not {"/metrics", "/healthz", "/readyz"} & set(ROUTES)
    assert not [path for path in ROUTES if path.startswith("/debug")]


def test_metrics_are_kept_by_the_server_and_never_by_the_client_library():
    for module in (app, admin, exposition):
        assert "REGISTRY" not in inspect.getsource(module)
