import shutil
from pathlib import Path

from deciding import decide
from projects import Project, evidence_of, write_network
from support import RunCommand

from mlx_platform.inference.build import build_package
from mlx_platform.registry.findings import summary_tag
from mlx_platform.registry.version import EVIDENCE_PREFIX, Lineage
from mlx_platform.serving.rollout.verdict import Outcome


def test_a_rollout_begins_with_its_first_step_and_production_stays(mlx: RunCommand, live: Project) -> None:
    outcome = mlx("rollout", "start", "digits/2", "--reason", "better", "--json")

    data = outcome.data
    assert outcome.code == 0, outcome.err
    assert (data["name"], data["version"], data["stable"], data["changed"]) == ("digits", 2, 1, True)
    assert (data["state"], data["step"]) == ("SHADOW", 1)
    sight = live.anew().sight("digits")
    assert dict(sight.holders) == {"canary": 2, "production": 1}
    (event,) = live.anew().rollouts("digits")[0]
    assert (event.number, event.actor, event.reason) == (data["event"], "tester", "better")
    assert event.evidence["rollout"]["candidate_digest"] == live.catalog.resolve("digits/2").digest


def test_the_same_start_again_changes_nothing_and_another_one_is_refused(
    mlx: RunCommand, live: Project, careful: Path
) -> None:
    first = mlx("rollout", "start", "digits/2", "--json").data
    again = mlx("rollout", "start", "digits/2", "--json")
    other_plan = mlx("rollout", "start", "digits/2", "--plan", careful)
    other = mlx("rollout", "start", "digits/3", "--json")

    assert (again.code, again.data["changed"], again.data["id"]) == (0, False, first["id"])
    assert other_plan.code == 4
    assert (other.code, other.document["error"]["rollout"]["id"]) == (4, first["id"])
    assert len(live.anew().rollouts("digits")) == 1


def test_a_rollout_is_put_aside_only_when_that_was_said(
    mlx: RunCommand, live: Project, careful: Path
) -> None:
    first = mlx("rollout", "start", "digits/2", "--json").data
    second = mlx("rollout", "start", "digits/3", "--replace", "--plan", careful, "--json")

    assert second.code == 0, second.err
    (one, two) = live.anew().rollouts("digits")
    ended = one[-1].evidence["rollout"]
    assert (ended["id"], ended["state"], ended["cause"]) == (first["id"], "ABORTED", "replaced")
    assert one[-1].to_version is None
    assert two[-1].to_version == 3
    assert second.data["plan"]["steps"][0]["percent"] == 50


def test_what_holds_production_and_what_is_not_there_cannot_start(mlx: RunCommand, live: Project) -> None:
    there = mlx("rollout", "start", "digits/1", "--wait", "--json")
    assert (there.code, there.data["id"], there.data["changed"]) == (0, None, False)
    assert mlx("rollout", "start", "digits/9").code == 3
    assert mlx("rollout", "start", "digits").code == 2
    assert mlx("rollout", "start", "digits/2", "--plan", "no.toml").code == 3
    assert mlx("rollout", "start", "digits/2", "--force").code == 2
    assert live.anew().rollouts("digits") == ()


def test_a_model_without_production_is_told_how_to_get_one(mlx: RunCommand, project: Project) -> None:
    outcome = mlx("rollout", "start", "digits/2", "--registry", f"sqlite:///{project.database}")

    assert outcome.code == 3
    assert "mlx promote digits/2 --to production" in outcome.err


def test_production_gates_hold_for_a_rollout_but_not_for_what_it_brings_itself(
    mlx: RunCommand, live: Project
) -> None:
    (live.folder / "mlx.toml").write_text(
        '[promotion.production]\nneeds = ["evaluation", "shadow", "rollout"]\n'
    )
    refused = mlx("rollout", "start", "digits/2", "--json")
    version = live.catalog.resolve("digits/2")
    passed = summary_tag(evidence_of(version), "a-run")
    live.catalog.set_tags(version, {f"{EVIDENCE_PREFIX}evaluation": passed})
    started = mlx("rollout", "start", "digits/2")

    assert refused.code == 5
    assert "evaluation (no evidence)" in refused.document["error"]["message"]
    assert "shadow" not in refused.document["error"]["message"]
    assert "mlx eval digits/2" in refused.document["error"]["hint"]
    assert started.code == 0, started.err


def test_a_quarantined_version_needs_force_and_a_reason(mlx: RunCommand, live: Project) -> None:
    live.catalog.quarantine(live.catalog.resolve("digits/2"), "wrong answers")

    refused = mlx("rollout", "start", "digits/2")
    forced = mlx("rollout", "start", "digits/2", "--force", "--reason", "was the proxy", "--json")
    for _ in range(4):
        mlx("rollout", "advance", "digits")

    assert refused.code == 5
    assert "quarantine" in refused.err
    assert "--force --reason WHY" in refused.err
    assert forced.code == 0, forced.err
    assert forced.data["overridden"] == ["quarantine"]
    move = live.anew().journal("digits").last("production")
    assert move is not None
    assert move.evidence["overridden"] == ["quarantine"]  # as promoting by hand would have it
    assert mlx("doctor", "registry", "digits").code == 0


def test_an_archived_version_and_one_with_another_signature_cannot_start(
    mlx: RunCommand, live: Project, tmp_path: Path
) -> None:
    mlx("archive", "digits/3")
    source = write_wide(tmp_path / "wide.onnx")
    package = build_package(source, tmp_path / "wide").package
    live.catalog.register("digits", package, Lineage(dataset_version="x"))

    archived, wide = mlx("rollout", "start", "digits/3"), mlx("rollout", "start", "digits/4", "--json")

    assert archived.code == 4
    assert wide.code == 5
    assert wide.document["error"]["differences"]
    assert "mlx diff digits/1 digits/4" in wide.err


def write_wide(path: Path) -> Path:
    """The same network, but its input has another name."""
    import onnx

    write_network(path, 1.0)
    model = onnx.load(path)
    model.graph.node[0].input[0] = model.graph.input[0].name = "other"
    onnx.save(model, path)
    return path


def test_a_package_that_is_damaged_is_found_before_anything_is_written(
    mlx: RunCommand, live: Project
) -> None:
    version = live.catalog.resolve("digits/2")
    shutil.rmtree(live.catalog.fetch(version).root)
    for path in (live.folder / "mlx-artifacts").rglob("model.onnx"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"!")

    assert mlx("rollout", "start", "digits/2").code == 10
    assert live.anew().rollouts("digits") == ()


AB = """
[promotion.production]
needs = []
[rollout.ab]
metric = "clicked"
base = 0.1
min_effect = 0.02
"""


def test_an_ab_test_says_beforehand_how_many_requests_it_needs(mlx: RunCommand, live: Project) -> None:
    (live.folder / "mlx.toml").write_text(AB)

    outcome = mlx("rollout", "start", "digits/2", "--ab", "50", "--json")

    assert outcome.code == 0, outcome.err
    stable, candidate = outcome.data["required"]
    assert 3500 < stable == candidate < 4200
    assert f"{stable:,} + {candidate:,} requests with an outcome" in outcome.err
    (step,) = outcome.data["plan"]["steps"]
    assert (step["percent"], step["max_duration_s"]) == (50, 14 * 86_400)
    assert mlx("rollout", "start", "digits/2", "--ab", "100").code == 2


def test_a_rollout_that_was_taken_back_is_tried_again_only_by_force(
    mlx: RunCommand, live: Project, careful: Path
) -> None:
    first = mlx("rollout", "start", "digits/2", "--plan", careful, "--json").data
    going = mlx("rollout", "retry", "digits")
    assert decide(live, Outcome.FAIL).state == "ABORTED"

    refused = mlx("rollout", "retry", "digits")
    again = mlx("rollout", "retry", "digits", "--force", "--reason", "was the proxy", "--json")

    assert (going.code, refused.code, again.code) == (4, 5, 0)
    assert again.data["id"] != first["id"]
    assert again.data["plan"] == first["plan"]
    assert "Rollout " in refused.err  # why it is quarantined
