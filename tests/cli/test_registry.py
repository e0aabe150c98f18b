import subprocess

import pytest
from projects import Project, write_network
from support import RunCommand


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that is the working folder as well."""
    monkeypatch.chdir(project.folder)
    return project


def test_an_expression_that_breaks_off_is_shown_with_a_caret(project: Project, mlx: RunCommand) -> None:
    outcome = mlx("list", "digits", "--where", "metrics.f1 >= and archived")

    assert (outcome.code, outcome.out) == (2, "")
    lines = outcome.err.splitlines()
    assert lines[0].startswith("error: --where, character 15: a value for metrics.f1 was expected")
    assert lines[1].index("and") == lines[2].index("^")


def test_an_order_may_start_with_a_dash(project: Project, mlx: RunCommand) -> None:
    found = mlx("list", "digits", "--sort", "-metrics.f1", "--limit", "1", "--json").data

    assert [version["version"] for version in found["versions"]] == [3]


def test_nothing_is_deleted_where_nobody_can_be_asked(project: Project, mlx: RunCommand) -> None:
    refused = mlx("delete", "digits/2")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert mlx("show", "digits/2").code == 0

    assert mlx("delete", "digits/2", "--yes", "--reason", "leaked").code == 0
    gone = mlx("show", "digits/2")
    assert gone.code == 3
    assert "digits/2 was deleted by tester on" in gone.err
    assert mlx("delete", "digits/2", "--yes", "--json").data["changed"] is False


def test_a_field_is_printed_alone(project: Project, mlx: RunCommand) -> None:
    assert mlx("show", "digits/2", "--fields", "digest").out == project.package(2).digest + "\n"
    assert mlx("show", "digits/2", "--fields", "version,params.lr", "--quiet").out == "2\n0.2\n"
    assert mlx("show", "digits/2", "--fields", "params.lr", "--json").data == {"params.lr": "0.2"}
    assert mlx("show", "digits/2", "--fields", "").code == 2


def test_a_difference_is_an_exit_code_when_it_is_asked_for(project: Project, mlx: RunCommand) -> None:
    assert mlx("diff", "digits/1", "digits/2", "--only", "params").code == 0
    outcome = mlx("diff", "digits/1", "digits/2", "--only", "params", "--exit-code", "--json")
    assert (outcome.code, outcome.document["exit_code"], outcome.document["verdict"]) == (5, 5, "fail")
    assert mlx("diff", "digits/1", "digits/1", "--exit-code").code == 0


def test_a_version_goes_into_the_archive_and_comes_back(project: Project, mlx: RunCommand) -> None:
    assert mlx("archive", "digits/2", "--json").data["after"] == "archived"
    assert [version["version"] for version in mlx("list", "digits", "--json").data["versions"]] == [3, 1]
    assert mlx("archive", "digits/2", "--undo", "--json").data["after"] == "staging candidate"


def test_the_commit_of_the_training_code_is_kept_and_marked_dirty(project: Project, mlx: RunCommand) -> None:
    source = write_network(project.folder / "new.onnx", 7.0)
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    (project.folder / "train.py").write_text("lr = 0.1\n")
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "Train"]):
        subprocess.run([*git, *words], cwd=project.folder, check=True)
    (project.folder / "train.py").write_text("lr = 0.2\n")

    registered = mlx("register", "digits", source, "--git-commit", "auto", "--dataset-version", "7", "--json")

    assert registered.code == 0, registered.err
    assert registered.data["git_commit"].endswith("+dirty")
    assert len(registered.data["git_commit"]) == 40 + len("+dirty")
    assert "with changes that were not committed" in mlx("show", "digits/4").out
    found = mlx("list", "--where", "git_commit contains dirty and dataset = 7", "--json").data["versions"]
    assert [version["label"] for version in found] == [registered.data["label"]]


@pytest.mark.parametrize("text", ["digits/2~1", "digits/-1", "~0"])
def test_what_is_neither_a_reference_nor_a_file_is_told_the_grammar(
    project: Project, mlx: RunCommand, text: str
) -> None:
    outcome = mlx("resolve", text)

    assert outcome.code == 2
    assert "NAME@ALIAS~1" in outcome.err
    assert "register" not in outcome.err


def test_an_error_names_the_command_as_its_result_does(project: Project, mlx: RunCommand) -> None:
    assert mlx("events", "test", "ops", "--json").document["command"] == "events test"
    assert mlx("doctor", "registry", "nobody", "--json").document["command"] == "doctor registry"
    assert mlx("show", "doctor/1", "--json").document["command"] == "show"


def test_groups_have_examples_and_a_whole_sentence_in_the_list(mlx: RunCommand) -> None:
    for group in ("events", "doctor"):
        assert f"mlx {group} " in mlx(group, "--help").out.partition("Examples:")[2]
    assert "..." not in mlx("--help").out.partition("Commands:")[2]
