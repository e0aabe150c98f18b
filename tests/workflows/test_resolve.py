from projects import Project

from mlx_platform.workflows.resolve import resolve


def test_a_reference_becomes_a_name_and_a_number(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    result = resolve(project.context, "digits@production")

    assert result.report.summary == "digits/2"
    assert (result.data["name"], result.data["version"]) == ("digits", 2)
    assert result.data["digest"] == project.package(2).digest
    assert result.data["aliases"] == ["production"]
