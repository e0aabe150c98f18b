"""Whatever is put in, a user gets one sentence, the right exit code, and nothing lost or half-written."""

import http.server
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import Demo, Outcome, RunCommand, clean_environment, run_process


def sentence(outcome: Outcome) -> str:
    """The one error sentence of a command; fails when there is a traceback or anything on stdout."""
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, outcome.err
    return errors[0]


@dataclass(frozen=True, slots=True)
class Place:
    """The demo's folder, as the working folder of commands in this process."""

    folder: Path
    mlx: RunCommand
    monkeypatch: pytest.MonkeyPatch

    def run(self, *arguments: object, env: Mapping[str, str] | None = None) -> Outcome:
        with self.monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            return self.mlx(*arguments)


def snapshot(folder: Path) -> Any:
    """Every version and every alias with its holder, the journal's included."""
    with closing(sqlite3.connect(f"file:{folder / 'mlx.db'}?mode=ro", uri=True)) as connection:
        versions = connection.execute("SELECT name, version FROM model_versions ORDER BY 1, 2").fetchall()
        aliases = connection.execute(
            "SELECT name, alias, version FROM registered_model_aliases ORDER BY 1, 2"
        )
        return versions, aliases.fetchall()


@pytest.fixture
def untouched(demo: Demo, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The demo's folder, with a check that neither versions nor aliases changed."""
    monkeypatch.chdir(demo.folder)
    before = snapshot(demo.folder)
    yield Place(demo.folder, mlx, monkeypatch)
    assert snapshot(demo.folder) == before


def write_rows(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def digits_rows(path: Path, demo: Place, *, nan: bool = False, drop: Sequence[str] = ()) -> Path:
    table = pq.read_table(demo.folder / "data/test.parquet").slice(0, 20)
    columns = {name: table[name].to_numpy().copy() for name in table.column_names if name not in drop}
    if nan:
        columns["p10"][7] = np.nan
    return write_rows(path, **columns)


def test_a_missing_source_is_not_found(untouched: Place, tmp_path: Path) -> None:
    outcome = untouched.run("register", "digits", tmp_path / "no.onnx")

    assert outcome.code == 3
    assert "no.onnx" in sentence(outcome)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04pickle", b"PK\x03\x04zip", os.urandom(2000)])
def test_a_file_that_is_no_onnx_is_refused(untouched: Place, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    outcome = untouched.run("register", "digits", path)

    assert outcome.code == 2
    assert "model.onnx" in sentence(outcome)


def test_external_data_outside_the_folder_is_refused(untouched: Place, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    (tmp_path / "secret.bin").write_bytes(np.zeros(4, np.float32).tobytes())
    weights = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 2], data_location=TensorProto.EXTERNAL
    )
    weights.external_data.add(key="location", value="../secret.bin")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [weights],
    )
    folder = tmp_path / "package"
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    assert onnx.__version__

    for source in (folder, folder / "model.onnx"):
        outcome = untouched.run("register", "digits", source)

        assert outcome.code == 2
        sentence(outcome)


def test_a_pipe_is_no_model_and_does_not_hang(untouched: Place, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    outcome = untouched.run("register", "digits", tmp_path / "model.onnx")

    assert outcome.code == 2
    assert "no regular file" in sentence(outcome)


def test_an_output_as_wide_as_memory_is_refused(untouched: Place, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    wide = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2**40]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", wide[:1], wide[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "wide.onnx")
    outcome = untouched.run("register", "digits", tmp_path / "wide.onnx")

    assert outcome.code == 2
    assert "classes" in sentence(outcome)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("null.jsonl", b"null\n"),
        ("mixed.jsonl", b'{"a": 1}\n[1, 2]\n'),
        ("latin.csv", "hé,label\n1,2\n".encode("latin-1")),
        ("text.parquet", b"no parquet"),
    ],
)
def test_a_data_file_that_is_not_what_its_name_says_is_a_sentence(
    untouched: Place, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    outcome = untouched.run("eval", "digits/2", "--data", tmp_path / name)

    assert outcome.code == 2
    assert name in sentence(outcome)


def test_a_label_column_that_does_not_exist_is_named_with_the_columns_there_are(untouched: Place) -> None:
    outcome = untouched.run("eval", "digits/2", "--data", "data/test.parquet", "--label", "lable")

    assert outcome.code == 2
    assert "lable" in sentence(outcome)
    assert "label" in outcome.err


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_an_empty_data_file_is_undecided_never_a_pass(untouched: Place, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"empty.{suffix}"
    if suffix == "parquet":
        write_rows(path, p00=np.zeros(0, np.float32), label=np.zeros(0, np.int64))
    else:
        path.write_text("")
    outcome = untouched.run("eval", "digits/2", "--data", path)

    assert outcome.code == 7
    assert "Traceback" not in outcome.err


def test_nan_in_the_inputs_is_named_with_its_column_and_row(untouched: Place, tmp_path: Path) -> None:
    outcome = untouched.run(
        "eval", "digits/2", "--data", digits_rows(tmp_path / "nan.parquet", untouched, nan=True)
    )

    assert outcome.code == 2
    assert "p10" in sentence(outcome)
    assert "7" in outcome.err


def test_a_missing_column_is_named(untouched: Place, tmp_path: Path) -> None:
    path = digits_rows(tmp_path / "short.parquet", untouched, drop=["p63"])
    outcome = untouched.run("eval", "digits/2", "--data", path)

    assert outcome.code == 2
    assert "p63" in sentence(outcome)


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("digits/99", 3),
        ("nothing@production", 3),
        ("digits@champion", 3),
        ("digits@production~99", 3),
        ("nothing", 3),
        ("digits", 2),
        ("digits@", 2),
        ("dig its@production", 2),
        ("digits@production\n", 2),
    ],
)
def test_an_unknown_reference_has_its_own_exit_code(untouched: Place, reference: str, code: int) -> None:
    for command in (["resolve", reference], ["eval", reference, "--data", "data/test.parquet"]):
        outcome = untouched.run(*command)

        assert outcome.code == code, outcome.err
        sentence(outcome)


@pytest.mark.parametrize(
    "name", ["a\nb", "a\n", "", " lead", "a/b", "@x", "../x", "a\x1b[2Jb", "x" * 129, "=cmd()"]
)
def test_a_name_that_could_trick_somebody_is_refused(untouched: Place, name: str) -> None:
    outcome = untouched.run("register", name, "models/first")

    assert outcome.code == 2
    assert "\x1b" not in outcome.err
    sentence(outcome)


@contextmanager
def locked(database: Path) -> Iterator[None]:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@pytest.mark.parametrize(
    "command",
    [
        ["resolve", "digits@production"],
        ["list", "digits"],
        ["promote", "digits/1", "--to", "staging"],
        ["register", "digits", "models/first"],
    ],
)
def test_a_locked_registry_is_busy_in_one_sentence(untouched: Place, command: list[str]) -> None:
    with locked(untouched.folder / "mlx.db"):
        outcome = untouched.run(*command, env={"MLX_REGISTRY_TIMEOUT": "1"})

    assert outcome.code == 9
    sentence(outcome)


def test_a_server_that_is_not_there_is_unreachable(untouched: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for command in (["resolve", "digits@production"], ["register", "digits", "models/first"]):
            outcome = untouched.run(*command, "--registry", uri, env={"MLX_REGISTRY_TIMEOUT": "1"})

            assert outcome.code == 9
            sentence(outcome)


class _Garbage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><script>alert(1)</script>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the base class names it so

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


def test_a_server_that_answers_html_is_refused(untouched: Place) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Garbage)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        uri = f"http://127.0.0.1:{server.server_address[1]}"
        outcome = untouched.run("resolve", "digits@production", "--registry", uri)
    finally:
        server.shutdown()
        server.server_close()

    assert outcome.code == 9
    sentence(outcome)


def test_a_registry_that_was_never_made_is_not_found_and_not_made_by_reading(tmp_path: Path) -> None:
    outcome = run_process(["list"], cwd=tmp_path)

    assert outcome.code == 3
    assert "mlx init" in outcome.err
    assert not (tmp_path / "mlx.db").exists()


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_port_in_use_is_named(untouched: Place, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        outcome = untouched.run("serve", "digits@production", flag, port)

    assert outcome.code == 2
    assert str(port) in sentence(outcome)


QUANTIZE = (
    "quantize",
    "digits/2",
    "--calibration",
    "data/calibration.parquet",
    "--data",
    "data/test.parquet",
)
LONG_COMMANDS: dict[str, tuple[str, ...]] = {
    "eval": ("eval", "digits/2", "--data", "data/test.parquet"),
    "quantize": QUANTIZE,
    "drift": ("drift", "digits@production", "--traffic", "traffic", "--report", "reports/interrupted"),
    "consistency": (
        "consistency",
        "digits@production",
        "--traffic",
        "traffic",
        "--report",
        "reports/interrupted",
    ),
}


def interrupted(command: Sequence[str], folder: Path, delay: float) -> subprocess.CompletedProcess[str]:
    """Start a command, wait until it has read its options, and press Ctrl-C `delay` seconds later."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_platform.cli", *command],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The registry is opened after the options; before that there is nothing to interrupt but Python's start.
    while process.poll() is None and "sqlite3" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.parametrize("name", LONG_COMMANDS)
def test_ctrl_c_ends_a_long_command_with_130_and_nothing_half_written(untouched: Place, name: str) -> None:
    done = [interrupted(LONG_COMMANDS[name], untouched.folder, delay) for delay in (0.02, 0.5, 1.2)]

    assert done[0].returncode == 130
    for each in done:
        assert "Traceback" not in each.stderr
        # A quick machine may be done before the last Ctrl-C comes.
        assert each.returncode in {130, 0, 5}, each.stderr
        assert ("error: Interrupted." in each.stderr) == (each.returncode == 130)
    pages = list((untouched.folder / "reports").glob("interrupted/*"))
    assert {page.name for page in pages} <= {"report.html", "report.json", "junit.xml"}


@pytest.mark.parametrize("delay", [0.02, 0.6, 1.5])
@pytest.mark.parametrize("command", [("register", "other", "{models}/first"), ("demo", "--output", "made")])
def test_ctrl_c_in_a_new_folder_leaves_nothing_that_a_second_run_trips_over(
    demo: Demo, tmp_path: Path, command: tuple[str, ...], delay: float
) -> None:
    words = tuple(word.replace("{models}", str(demo.folder / "models")) for word in command)
    done = interrupted(words, tmp_path, delay)

    assert "Traceback" not in done.stderr
    if command[0] == "demo" and done.returncode == 0:
        # Python drops an exception that meets a callback from C, as when libraries are looked up: the demo
        # then goes on, and must be whole.
        assert (tmp_path / "made" / "mlx.db").is_file()
        assert "rollback" in done.stdout
        return
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("error: Interrupted.\n")
    if command[0] == "register":
        again = run_process((*words, "--json"), cwd=tmp_path)
        assert (again.code, again.data["version"]) == (0, 1), again.err
