"""A follower over a real registry, in this process: what it loads, when it switches, and what it survives."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, closing
from dataclasses import replace

import pytest

from mlx_platform.inference.build import build_package
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package, seal
from mlx_platform.registry.version import Lineage
from mlx_platform.serving.assembly import Assembly, open_log
from mlx_platform.serving.following import follower as following
from mlx_platform.serving.following.desk import VERSIONS, Desk
from mlx_platform.serving.following.followed import Followed
from mlx_platform.serving.following.follower import Follower
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.router import Router
from mlx_platform.traffic.log import read_log

ROW = [{"x[0]": 1.0, "x[1]": 2.0, "x[2]": 3.0, "x[3]": 4.0}]
LINEAGE = Lineage(dataset_version="d", dataset_fingerprint="", git_commit="0" * 40, params={}, metrics={})


class GatedDesk(Desk):
    """Lets a load go on only when the test says so, and counts them."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.gate = threading.Event()
        self.gate.set()
        self.begun = []
        self.models = []
        self.most = 0

    def obtain(self, number, before):
        self.begun.append(number)
        self.gate.wait(60)
        self.models.append(super().obtain(number, before))
        self.most = max(self.most, sum(model.session._session is not None for model in self.models))
        return self.models[-1]


class Stage:
    """A follower that looks as soon as it may, and those who watch it."""

    def __init__(self, project, **serving):
        settings = replace(project.settings, serving=replace(project.settings.serving, **serving))
        self.project = project
        self.catalog = project.anew()
        self.desk = GatedDesk(Followed("digits", "production", settings), "cpu")
        self.desk.interval = 0.01
        self.assembly = Assembly(settings.serving, embedder=None, light=None, feed=None, versions=VERSIONS)
        model = Model.load(project.package(1), name="digits", version="1", device="cpu", threads=1)
        self.desk.models.append(model)
        writer = open_log(settings.serving, "digits", "1")
        self.router = Router(self.assembly.make(model, writer))
        self.marks = Marks(project.folder / "marks", "this")
        self.follower = Follower(
            self.router, self.assembly, self.desk, settings.serving.keep_warm_s, self.marks
        )

    def move(self, to):
        self.catalog.move("digits", "production", to, kind="promote", actor="ada")

    @property
    def version(self):
        return self.router.stable.version

    async def until(self, condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - of many kinds, and most of them set no event
                await asyncio.sleep(0.005)

    async def ask(self, version=""):
        """Ask for the answer to a row, and say who gave it."""
        served = self.router.named("digits", version)
        exchange = served.open("id", "predict", {}, None)
        exchange.pinned = bool(version)
        answers = await served.predict([[1.0, 2.0, 3.0, 4.0]], exchange)
        self.router.finish(served, exchange, status=200, error="")
        assert len(answers) > 0
        return served.version


@asynccontextmanager
async def staged(project, **serving):
    stage = Stage(project, **serving)
    await stage.assembly.start(stage.router.stable)
    stage.follower.start()
    try:
        await stage.until(lambda: stage.follower.sight is not None)
        yield stage
    finally:
        stage.desk.gate.set()
        await stage.follower.stop()
        for served in stage.router:
            await served.close(0)
            await stage.assembly.close_log(served)


def play(project, scenario, **serving):
    async def main():
        async with staged(project, **serving) as stage:
            return await scenario(stage)

    return asyncio.run(main())


def test_it_switches_when_the_alias_moves_and_keeps_the_one_before_warm(project):
    async def scenario(stage):
        first = stage.router.stable
        stage.move(2)
        await stage.until(lambda: stage.version == "2")
        assert await stage.ask() == "2"
        assert await stage.ask("1") == "1"  # by name, as long as it is here
        assert (stage.router.stable.arm, first.arm) == ("production", "warm")
        with pytest.raises(Refusal):
            await stage.ask("3")
        stage.move(1)
        await stage.until(lambda: stage.version == "1")
        assert stage.router.stable is first  # from memory, as it was
        assert stage.desk.begun == [2]
        document = stage.follower.document()
        assert (document["serves"], document["target"], document["switches"]) == ("1", "1", 2)
        assert document["loaded"] == {"1": "production", "2": "warm"}
        assert document["registry"] == "ok"

    play(project, scenario)


def test_what_was_replaced_is_unloaded_after_a_while(project):
    async def scenario(stage):
        first = stage.router.stable
        await stage.ask()
        stage.move(2)
        await stage.until(lambda: stage.router.loaded == (stage.router.stable,) and stage.version == "2")
        await stage.until(lambda: first.engine.model.session._session is None)
        assert stage.assembly.logged["logged"] == 1

    traffic = project.folder / "traffic"
    play(project, scenario, keep_warm_s=0.05, traffic=str(traffic))
    assert [(record.version, record.arm) for record in read_log(traffic)[0]] == [("1", "production")]


def test_a_version_that_is_asked_is_not_taken_apart_under_the_hands_of_its_clients(project):
    async def scenario(stage):
        first = stage.router.stable
        exchange = first.open("slow", "predict", {}, None)
        stage.move(2)
        await stage.until(lambda: stage.version == "2" and first not in stage.router.loaded)
        answers = await first.predict([[1.0, 2.0, 3.0, 4.0]], exchange)
        assert len(answers) > 0
        stage.router.finish(first, exchange, status=200, error="")
        await stage.until(lambda: first.engine.model.session._session is None)

    play(project, scenario, keep_warm_s=0)


def test_only_the_newest_of_many_wishes_counts(project):
    async def scenario(stage):
        stage.desk.gate.clear()
        stage.move(2)
        await stage.until(lambda: stage.desk.begun == [2])
        for number in (1, 3, 2, 1, 3):
            stage.move(number)
        await stage.until(lambda: stage.follower.sight.holders["production"] == 3)
        seen = set()
        stage.follower.listeners.append(lambda _: seen.add(stage.version))
        stage.desk.gate.set()
        await stage.until(lambda: stage.version == "3")
        assert "2" not in seen
        assert stage.desk.begun == [2, 3]
        assert len(stage.router.loaded) <= VERSIONS

    play(project, scenario)


def test_there_are_never_more_than_two_versions_in_memory_though_one_has_to_finish(project):
    async def scenario(stage):
        first = stage.router.stable
        exchange = first.open("slow", "predict", {}, None)
        stage.move(2)
        await stage.until(lambda: stage.version == "2" and first not in stage.router.loaded)
        stage.move(3)
        await stage.until(lambda: stage.follower.sight.holders["production"] == 3)
        await stage.until(wait_for_look(stage))
        assert stage.desk.begun == [2]
        await first.predict([[1.0, 2.0, 3.0, 4.0]], exchange)
        stage.router.finish(first, exchange, status=200, error="")
        await stage.until(lambda: stage.version == "3")
        assert stage.desk.most == VERSIONS
        assert stage.follower.setback is None

    play(project, scenario, keep_warm_s=0)


def full(_model):
    raise OSError(28, "No space left on device")


def test_who_is_promoted_while_a_candidate_is_loaded_waits_for_it(project, caplog):
    async def scenario(stage):
        forgotten = []
        stage.marks.forget = forgotten.append
        stage.desk.remember = full
        stage.desk.gate.clear()
        candidate = asyncio.ensure_future(stage.follower.bring(2))
        await stage.until(lambda: stage.desk.begun == [2])
        stage.move(3)
        await stage.until(lambda: stage.follower.sight.holders["production"] == 3)
        await stage.until(wait_for_look(stage))
        stage.desk.gate.set()
        assert (await candidate).version == "2"
        await stage.until(lambda: stage.version == "3")
        assert sum(stage.follower._failures.values()) == 0
        await stage.until(lambda: forgotten == ["digits-3"])

    play(project, scenario)
    assert "Version 3 could not be noted for a start without the registry" in caplog.text


def test_what_a_switch_leaves_for_later_waits_for_the_thread_that_loads(project):
    async def scenario(stage):
        two = await stage.follower.bring(2)
        stage.desk.gate.clear()
        async with stage.follower._one_at_a_time:  # a candidate comes first
            stage.move(2)
            await stage.until(lambda: stage.router.stable is two)
            candidate = asyncio.ensure_future(stage.follower._load(3))
            await stage.until(lambda: stage.desk.begun == [2, 3])
            stage.desk.gate.set()
            await candidate
        await stage.until(lambda: stage.desk.recall() is not None and stage.desk.recall()[0] == "2")

    play(project, scenario)


def test_a_warm_version_that_is_asked_for_anew_is_not_let_go_of_by_an_old_timer(project):
    async def scenario(stage):
        candidate = await stage.follower.bring(2)
        stage.follower.held = {"2"}
        stage.follower.let_go(candidate)
        assert await stage.follower.bring(2) is candidate
        assert stage.follower._timers == {}
        stage.follower.let_go(candidate)
        stage.router.try_out(candidate)  # whoever had it all the time
        timer = stage.follower._timers["2"]
        await stage.until(lambda: stage.follower._timers["2"] is not timer)
        assert stage.router.candidate is candidate
        assert candidate.arm == "canary"

    play(project, scenario, keep_warm_s=0.05)


def test_a_candidate_is_brought_beside_what_serves_and_let_go_of(project):
    async def scenario(stage):
        candidate = await stage.follower.bring(3)
        assert candidate is await stage.follower.bring(3)
        assert (stage.version, candidate.arm) == ("1", "warm")
        stage.router.try_out(candidate)
        stage.follower.let_go(stage.router.stable)  # which nobody can
        assert stage.router.candidate is candidate
        stage.follower.let_go(candidate, now=True)
        assert stage.router.candidate is None
        await stage.until(lambda: stage.router.loaded == (stage.router.stable,))
        assert await stage.ask() == "1"

    play(project, scenario)


def test_what_is_held_stays_however_long_nobody_is_sent_to_it(project):
    async def scenario(stage):
        first = stage.router.stable
        stage.follower.held = {"1"}
        stage.move(2)
        await stage.until(lambda: stage.version == "2")
        await asyncio.sleep(0.1)  # several times as long as it would have been kept
        assert first in stage.router.loaded
        stage.follower.held = set()
        await stage.until(lambda: first not in stage.router.loaded)

    play(project, scenario, keep_warm_s=0.02)


def register(project, package):
    return project.catalog.register("digits", package, LINEAGE)[0].number


def failing(stage, reason):
    setback = stage.follower.setback
    return setback is not None and setback.reason == reason


def test_a_version_that_does_not_answer_as_it_did_never_serves(project):
    root = project.variant("lying").root
    shutil.copy(project.package(2).root / "golden.jsonl", root / "golden.jsonl")
    seal(root)
    number = register(project, open_package(root))

    async def scenario(stage):
        stage.move(number)
        await stage.until(lambda: failing(stage, "self_check"))
        for _ in range(3):
            await stage.until(wait_for_look(stage))
        assert stage.desk.begun == [number]  # again would come to the same
        assert await stage.ask() == "1"
        assert stage.router.loaded == (stage.router.stable,)
        told = stage.follower.document()["setback"]
        assert (told["version"], told["reason"], told["again_in_s"]) == (str(number), "self_check", None)
        assert "does not answer as it did" in told["message"]
        counted = {sample.labels: sample.value for sample in stage.follower.samples()}
        assert counted[(("reason", "self_check"),)] == 1
        stage.move(2)
        await stage.until(lambda: stage.version == "2")
        assert stage.follower.setback is None

    play(project, scenario)


def test_a_version_that_ended_two_processes_is_not_loaded_by_a_third(project):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from mlx_platform.serving.rollout.deaths import Marks\n"
        "Marks(Path(sys.argv[1]), str(os.getpid())).set('digits-2', 0)\n"
        "os._exit(1)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(project.folder / "marks")], check=False)

    async def scenario(stage):
        stage.move(2)
        await stage.until(lambda: failing(stage, "deadly"))
        assert stage.desk.begun == []
        assert await stage.ask() == "1"
        stage.move(1)
        await stage.until(lambda: stage.follower.setback is None)
        stage.move(2)  # somebody insists
        await stage.until(lambda: stage.version == "2")

    play(project, scenario)


def wait_for_look(stage):
    """A condition that is true once the follower has looked again."""
    looks = []
    stage.follower.listeners.append(looks.append)
    return lambda: looks


def test_a_version_with_another_signature_is_refused(project):
    number = register(project, wider_package(project.folder))

    async def scenario(stage):
        stage.move(number)
        await stage.until(lambda: failing(stage, "signature"))
        assert "its input x FP32 [?, 5] was x FP32 [?, 4]" in stage.follower.setback.message
        assert await stage.ask() == "1"

    play(project, scenario)


def wider_package(folder):
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"]),
        ],
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, [5, 3], [0.1] * 15)],
    )
    path = folder / "wider.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return build_package(path, folder / "packages" / "wider").package


def test_a_version_whose_bytes_were_changed_is_refused(project):
    stored = (project.folder / "mlx-artifacts").rglob("model.onnx")
    path = next(found for found in stored if is_of(found, project, 2))
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    async def scenario(stage):
        stage.move(2)
        await stage.until(lambda: failing(stage, "integrity"))
        assert await stage.ask() == "1"

    play(project, scenario)


def is_of(path, project, number):
    return path.read_bytes() == (project.package(number).root / "model.onnx").read_bytes()


def test_a_second_version_for_which_there_is_no_memory_is_refused(project):
    async def scenario(stage):
        stage.move(2)
        await stage.until(lambda: failing(stage, "no_room"))
        assert stage.follower.setback.again is not None  # there may be some later
        assert await stage.ask() == "1"
        assert stage.router.loaded == (stage.router.stable,)

    play(project, scenario, memory_bytes=100 * 1024**2)  # of which each of two has half


def test_a_registry_that_is_locked_holds_up_nobody(project):
    async def scenario(stage):
        with closing(sqlite3.connect(project.database, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            await stage.until(lambda: stage.follower.trouble)
            assert stage.follower.sight is None
            assert await stage.ask() == "1"
            up = {sample.name: sample.value for sample in stage.follower.samples()}["mlx_registry_up"]
            assert up == 0
            holder.execute("ROLLBACK")
        await stage.until(lambda: not stage.follower.trouble)
        stage.move(2)
        await stage.until(lambda: stage.version == "2")

    project.settings = replace(project.settings, registry=replace(project.settings.registry, timeout=0.1))
    play(project, scenario)


def test_a_journal_that_was_tampered_with_changes_nothing(project):
    async def scenario(stage):
        stage.catalog.move("digits", "production", 2, kind="promote", actor="ada")
        tamper(project)
        anew = Desk(stage.desk.followed, "cpu")
        stage.desk.look = anew.look  # as after a start
        await stage.until(lambda: stage.follower.trouble)
        assert "journal" in stage.follower.trouble
        assert await stage.ask() in {"1", "2"}

    play(project, scenario)


def tamper(project):
    """Change the last event of the journal, as somebody with access to the database may."""
    with closing(sqlite3.connect(project.database)) as database:
        rows = database.execute("SELECT rowid, value FROM model_version_tags WHERE value LIKE '%promote%'")
        found = rows.fetchall()
        assert found
        rowid, value = found[-1]
        changed = value.replace('"ada"', '"eve"')
        assert changed != value
        database.execute("UPDATE model_version_tags SET value = ? WHERE rowid = ?", (changed, rowid))
        database.commit()


def test_a_registry_that_never_answers_holds_up_nobody(project, monkeypatch):
    monkeypatch.setattr(following, "_LOOK_SECONDS", 0.02)
    silent = threading.Event()

    async def scenario(stage):
        look = stage.desk.look

        def hang():
            silent.wait(60)
            return look()

        stage.desk.look = hang
        await stage.until(lambda: stage.follower.trouble)
        assert await stage.ask() == "1"
        silent.set()
        await stage.until(lambda: not stage.follower.trouble)

    play(project, scenario)


def test_an_alias_that_is_taken_away_leaves_what_serves(project):
    async def scenario(stage):
        sight = stage.desk.look

        def nobody():
            return replace(sight(), holders={})

        stage.desk.look = nobody
        await stage.until(lambda: stage.follower.sight is not None and not stage.follower.sight.holders)
        assert await stage.ask() == "1"
        assert stage.follower.document()["target"] is None

    play(project, scenario)


def test_what_the_alias_meant_last_is_known_without_the_registry(project):
    async def scenario(stage):
        stage.move(3)
        await stage.until(lambda: stage.version == "3")
        await stage.until(lambda: stage.desk.recall() is not None and stage.desk.recall()[0] == "3")
        await stage.follower.bring(2)  # a candidate is not what the alias means
        number, package = stage.desk.recall()
        assert (number, package.digest) == ("3", stage.router.engine.model.digest)

    play(project, scenario)
