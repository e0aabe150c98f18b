import pytest
from projects import Project, evidence_of

from mlx_platform.core.errors import UsageError
from mlx_platform.registry.fields import Known, number_of, parse_field, sort_versions, suggestion, tags_of
from mlx_platform.registry.version import Version, version_of


def versions(project: Project) -> tuple[Version, ...]:
    return project.catalog.versions("digits")


def test_a_field_needs_only_the_tags_that_are_named_for_it(project: Project) -> None:
    project.catalog.record(versions(project)[0], evidence_of(versions(project)[0]))
    reader = project.catalog._backend.reader
    names = (
        *("metrics.f1", "params.lr", "tags.mlx.task", "evidence.evaluation", "evaluation.accuracy"),
        *("name", "version", "label", "digest", "size", "created", "state", "candidate", "archived"),
        *("dataset", "git_commit", "task", "quantized", "run_id"),
    )
    whole = versions(project)[0]
    for name in names:
        field = parse_field(name)
        (row,) = reader.rows("digits", numbers=[3], keys=tags_of(field))
        bare = version_of(row, {})
        assert bare
        assert Known(bare).value(field) == Known(whole).value(field) is not None, name


def test_versions_are_sorted_in_both_directions_with_those_that_lack_the_field_last(project: Project) -> None:
    first, second, third = reversed(versions(project))
    numbers = {first.number: "10", second.number: "9", third.number: ""}

    def order(descending: bool) -> list[int]:
        from dataclasses import replace

        changed = [
            replace(version, params={"epochs": numbers[version.number]} if numbers[version.number] else {})
            for version in (first, second, third)
        ]
        found = sort_versions(changed, parse_field("params.epochs"), descending=descending)
        return [version.number for version in found]

    assert order(descending=False) == [2, 1, 3]
    assert order(descending=True) == [1, 2, 3]


def test_a_key_that_nothing_has_suggests_one_that_is_there(project: Project) -> None:
    assert suggestion(parse_field("params.lrr"), versions(project)) == "Did you mean 'params.lr'?"
    assert suggestion(parse_field("metrics.f1macro"), []) == ""


@pytest.mark.parametrize("name", ["", "metrics", "metrics.", "evidence", "__class__", "name.x", "tags"])
def test_what_names_no_field_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError):
        parse_field(name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-.5e2", -50.0),
        ("1_000", None),
        ("nan", None),
        ("1e999", None),
        ("", None),
        ("9" * 50, None),
    ],
)
def test_numbers_are_what_is_written_like_one(text: str, value: float | None) -> None:
    assert number_of(text) == value
