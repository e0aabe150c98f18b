"""What tests talk to, and with: MLflow, PostgreSQL, S3, and programs in Python environments of their own.

Each starts, or is made, when a test first asks for it. PostgreSQL is installed when it is missing and this is
a machine that may be installed on.
"""

import contextlib
import getpass
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import clean_environment

from mlx_platform.core.files import file_lock

# Found out on import: a test has another home.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx-tests"
_PATIENCE = 200  # seconds; two workers of MLflow on a busy machine
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
_BUCKET = "mlx-artifacts"


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """An S3 service with an empty bucket in it.

    `variables` are what a client needs in its environment: address, keys, region.
    """

    uri: str
    bucket: str
    variables: Mapping[str, str]

    def use(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Set the variables for one test; the URI of a folder of its own in the bucket."""
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"


@dataclass(slots=True)
class Postgres:
    """A PostgreSQL server in which every database has MLflow's tables already."""

    port: int
    _made: list[str] = field(default_factory=list)

    def uri(self, database: str) -> str:
        return f"postgresql+psycopg://mlx@127.0.0.1:{self.port}/{database}"

    def database(self, *, tables: bool = True) -> str:
        """The URI of a new database; with `tables` MLflow's are in it."""
        if tables and "prepared" not in self._made:
            uri = self._create("prepared", "template0")
            script = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments()"
            command = [sys.executable, "-c", script, uri]
            subprocess.run(command, env=clean_environment(**_QUIET), check=True, capture_output=True)
        return self._create(f"mlx_{len(self._made)}", "prepared" if tables else "template0")

    def _create(self, name: str, template: str) -> str:
        import psycopg

        with psycopg.connect(f"postgresql://mlx@127.0.0.1:{self.port}/postgres", autocommit=True) as server:
            server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
        self._made.append(name)
        return self.uri(name)


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of an MLflow server with two workers, over SQLite, that hands out its artifacts itself.

    All tests share it: let each name its models for itself.
    """
    folder = tmp_path_factory.mktemp("mlflow-server")
    with serve_mlflow(folder, f"sqlite:///{folder / 'server.db'}") as uri:
        yield uri


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server; `database()` makes a registry of the test's own in no time."""
    with serve_postgres() as port:
        yield Postgres(port)


@pytest.fixture(scope="session")
def postgres_uri(postgres: Postgres) -> str:
    """The URI of a database that all tests share."""
    return postgres.database()


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """An S3 service with a bucket; `use` prepares a test for it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    log = tmp_path_factory.mktemp("s3") / "log"
    with _running(command, log, ready=lambda: _answers(f"http://127.0.0.1:{port}/moto-api/")):
        import boto3

        variables = {
            "MLFLOW_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "mlx",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        boto3.client(
            "s3",
            endpoint_url=variables["MLFLOW_S3_ENDPOINT_URL"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name=variables["AWS_DEFAULT_REGION"],
        ).create_bucket(Bucket=_BUCKET)
        yield S3Endpoint(variables["MLFLOW_S3_ENDPOINT_URL"], _BUCKET, variables)


PeerEnvironment = Callable[..., Path]


@pytest.fixture(scope="session")
def peer_environment() -> PeerEnvironment:
    """Make Python environments for programs that cannot share ours: `peer_environment(name, *requirements)`.

    The interpreter of the environment comes back. It is made once and kept in the user's cache, by its name,
    requirements and version of Python.
    """
    return make_environment


def make_environment(name: str, *requirements: str) -> Path:
    """The interpreter of an environment with these requirements and what they need, and nothing else."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = "\n".join([version, *requirements])
    folder = _CACHE / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python, finished = folder / "bin" / "python", folder / "finished"
    lock = folder.with_name(f"{folder.name}.lock")
    with file_lock(lock, timeout=600, purpose=f"making the environment {name}"):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make = [sys.executable, "-m", "venv", str(folder)]
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            for command in (make, [*install, *requirements]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.fail(f"The environment {name} could not be made: {done.stdout}{done.stderr}")
            finished.write_text(wanted)
    return python


@contextmanager
def serve_mlflow(
    folder: Path,
    store: str,
    *options: str,
    workers: int = 2,
    artifacts: str = "",
    env: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run an MLflow server over a store.

    Args:
        folder: where it works, logs, and keeps artifacts unless they go elsewhere.
        store: URI of its database.
        *options: more of what `mlflow server` takes.
        workers: its processes.
        artifacts: URI of the store that it hands out; by default a folder.
        env: variables for it.

    Yields:
        Its URI.
    """
    port = free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--backend-store-uri", store, "--workers", str(workers)),
        *("--artifacts-destination", artifacts or str(folder / "served"), *options),
    ]
    uri = f"http://127.0.0.1:{port}"
    variables = clean_environment(**_QUIET, **(env or {}))
    with _running(
        command, folder / "server.log", env=variables, cwd=folder, ready=lambda: _answers(f"{uri}/health")
    ):
        yield uri


@contextmanager
def serve_postgres() -> Iterator[int]:
    """Run a PostgreSQL server on a free port, with its data in a folder that goes away with it."""
    programs = _postgres_programs()
    # It refuses to run as root, and what it runs as must be able to reach its folder.
    user = "postgres" if os.geteuid() == 0 else getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="mlx-postgres-"))
    port = free_port()
    try:
        shutil.chown(folder, user)
        data = folder / "data"
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(data),
            *["-A", "trust", "-U", "mlx", "-E", "UTF8", "--no-locale"],
        ]
        subprocess.run([*initdb, "--no-sync"], cwd=folder, check=True, capture_output=True, **_identity(user))
        command = [str(programs / "postgres"), "-D", str(data), "-k", "", "-h", "127.0.0.1", "-p", str(port)]
        settings = ["-c", "fsync=off", "-c", "max_connections=200"]
        with _running(
            [*command, *settings],
            folder / "log",
            cwd=folder,
            ready=lambda: _listens(port),
            stop=signal.SIGINT,
            user=user,
        ):
            yield port
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def debian_program(name: str, package: str) -> str:
    """The path of a program, installed from Debian's package where it is missing and may be."""
    if shutil.which(name) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=quiet, check=True)
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed; Debian has it in {package}.")
    return found


def _postgres_programs() -> Path:
    found = _find_postgres()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run([str(Path(__file__).with_name("install_postgres.sh"))], check=True)
        found = _find_postgres()
    if found is None:
        pytest.fail("PostgreSQL is not installed; install its server, for example Debian's postgresql-15.")
    return found


def _find_postgres() -> Path | None:
    path = shutil.which("postgres")
    places = [Path(path).resolve().parent] if path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists()), None)


def _identity(user: str) -> dict[str, str | Sequence[str]]:
    return {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def _running(
    command: Sequence[str],
    log: Path,
    *,
    ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stop: signal.Signals = signal.SIGTERM,
    user: str = "",
) -> Iterator[None]:
    """Run a server with its children until the end of the block, or of this process."""
    # Whoever kills the tests gives them no time to stop anything.
    with_us = ["setpriv", "--pdeathsig", stop.name.removeprefix("SIG")] if shutil.which("setpriv") else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*with_us, *command],
            env=env or clean_environment(),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **(_identity(user) if user else {}),
        )
    try:
        deadline = time.monotonic() + _PATIENCE
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, stop)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
        # The workers of one that had to be killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _listens(port: int) -> bool:
    import psycopg

    try:
        psycopg.connect(f"postgresql://mlx@127.0.0.1:{port}/postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
