import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving.access import Access
from mlx_platform.serving.refusal import Refusal

TOKEN = "0123456789abcdef"  # noqa: S105 - a token, of a test
RIGHT = {b"authorization": f"Bearer {TOKEN}".encode()}


def access(host="127.0.0.1", token=TOKEN, **settings):
    return Access.of(ServingSettings(admin_host=host, **settings), {"MLX_ADMIN_TOKEN": token})


def status_of(rule, headers, *, protected):
    try:
        rule.check(headers, protected=protected)
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_reads_without_a_token(host):
    assert status_of(access(host, token=""), {b"host": b"localhost:9090"}, protected=False) == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1", 200),
        (b"[::1]:80", 200),
        (b"evil.example", 403),
        (b"127.0.0.1.evil.example", 403),
        (b"", 403),
    ],
)
def test_this_machine_is_asked_by_its_own_names_only(host, status):
    assert status_of(access(), {b"host": host}, protected=False) == status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer ", 401),
        ("", 401),
    ],
)
@pytest.mark.parametrize(
    ("host", "protected"), [("127.0.0.1", True), ("192.0.2.1", True), ("192.0.2.1", False)]
)
def test_what_is_protected_and_what_comes_from_elsewhere_takes_the_token(host, protected, value, status):
    headers = {b"authorization": value.encode(), b"host": b"127.0.0.1"}
    assert status_of(access(host), headers, protected=protected) == status


def test_without_a_token_nothing_that_is_protected_can_be_done():
    rule = access(token="")
    assert status_of(rule, RIGHT, protected=True) == 403
    assert status_of(rule, {b"authorization": b"Bearer "}, protected=True) == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"http://localhost:3000", 200),
        (b"http://evil.example", 403),
        (b"null", 403),
        (b"http://[broken", 403),
    ],
)
def test_a_page_of_another_origin_changes_nothing_even_with_the_token(origin, status):
    assert status_of(access(), RIGHT | {b"origin": origin}, protected=True) == status


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", ""])  # noqa: S104
def test_others_cannot_reach_a_listener_that_has_no_token(host):
    with pytest.raises(UsageError, match="Without a token") as caught:
        access(host, token="")
    assert "MLX_ADMIN_TOKEN" in caught.value.hint


@pytest.mark.parametrize("token", ["short", "with\nline-break-in-it", "nötigenfalls-geheim"])
def test_a_token_that_is_no_secret_is_refused_without_being_shown(token):
    with pytest.raises(UsageError, match="no secret") as caught:
        access(token=token)
    assert token not in str(caught.value)


def test_the_variable_of_the_token_can_be_another_one():
    settings = ServingSettings(admin_token_env="OPS_TOKEN")  # noqa: S106 - the name of a variable
    rule = Access.of(settings, {"OPS_TOKEN": TOKEN})
    assert status_of(rule, RIGHT, protected=True) == 200
    assert status_of(access(admin_token_env=""), RIGHT, protected=True) == 403
