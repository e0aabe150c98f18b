from pathlib import Path

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.registry.address import parse_address

FOLDER = Path("/srv/project")


@pytest.mark.parametrize(
    ("uri", "database"),
    [
        ("sqlite:///mlx.db", "/srv/project/mlx.db"),
        ("sqlite:///sub/mlx.db", "/srv/project/sub/mlx.db"),
        ("sqlite:////var/mlx.db", "/var/mlx.db"),
    ],
)
def test_a_sqlite_path_is_relative_to_the_settings_unless_it_is_absolute(uri: str, database: str) -> None:
    address = parse_address(uri, FOLDER)

    assert address.database == Path(database)
    assert address.uri == f"sqlite:///{database}"


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("http://mlflow.example:5000/", "server"),
        ("https://mlflow.example", "server"),
        ("postgresql://u:p@host/db", "database"),
        ("mysql+pymysql://u:p@host/db", "database"),
    ],
)
def test_servers_and_databases_are_told_apart(uri: str, kind: str) -> None:
    assert parse_address(uri, FOLDER).kind == kind


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql+psycopg://ada:secret@host/db", "postgresql+psycopg://ada:***@host/db"),
        ("postgresql+psycopg://ada:sec/ret@host/db", "postgresql+psycopg://ada:***@host/db"),
        ("postgresql+psycopg://ada:sec@ret@host/db", "postgresql+psycopg://ada:***@host/db"),
        (
            "postgresql+psycopg://host/db?user=ada&password=secret&sslmode=require",
            "postgresql+psycopg://host/db?user=ada&password=***&sslmode=require",
        ),
        ("https://ada:sec@ret@host/mlflow", "https://ada:***@host/mlflow"),
        ("https://host:5000/team@home", "https://host:5000/team@home"),
    ],
)
def test_a_password_is_never_shown(uri: str, shown: str) -> None:
    assert parse_address(uri, FOLDER).shown == shown


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "mlx.db",
        "./mlruns",
        "file:///mlruns",
        "sqlite:///",
        "sqlite://",
        "sqlite:///:memory:",
        "http://",
        "x://y",
    ],
)
def test_other_registries_are_refused_with_an_example(uri: str) -> None:
    with pytest.raises(UsageError):
        parse_address(uri, FOLDER)


def test_postgresql_is_reached_with_the_driver_that_is_installed() -> None:
    assert parse_address("postgresql://ada@host/db", FOLDER).uri == "postgresql+psycopg://ada@host/db"
    assert parse_address("postgresql+pg8000://h/db", FOLDER).uri == "postgresql+pg8000://h/db"


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_platform.registry.address.find_spec", lambda _: None)

    with pytest.raises(UsageError, match="driver") as raised:
        parse_address("postgresql://ada@host/db", FOLDER)

    assert "mlx-platform[services]" in (raised.value.hint or "")
