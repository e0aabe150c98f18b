from projects import Project

from mlx_platform.workflows.resolve import resolve


def test_a_reference_becomes_a_name_and_a_number(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    result = resolve(project.context, "digits@production")

    assert result.report.summary == "digits/2"
    assert (result.data["name"], result.data["version"]) == ("digits", 2)
    assert result.data["digest"] == project.package(2).digest
    assert result.data["aliases"] == ["production"]
    assert result.warnings == ()


def test_an_alias_that_mlflow_has_elsewhere_is_a_warning(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    project.catalog._backend.store.set_alias("digits", "production", 1)

    result = resolve(project.context, "digits@production")

    (warning,) = result.warnings
    assert result.report.summary == "digits/2"
    assert "digits@production is 1, the journal says 2" in warning
    assert resolve(project.context, "digits/1").warnings == ()
