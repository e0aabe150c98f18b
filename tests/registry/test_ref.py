import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.registry.ref import (
    AliasRef,
    LabelRef,
    NameRef,
    PathRef,
    VersionRef,
    check_alias,
    check_name,
    is_name,
    parse_ref,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits@production", AliasRef("digits", "production")),
        ("digits@production~2", AliasRef("digits", "production", 2)),
        ("digits/12", VersionRef("digits", 12)),
        ("digits:12", VersionRef("digits", 12)),
        ("models:/digits/12", VersionRef("digits", 12)),
        ("models:/digits@staging", AliasRef("digits", "staging")),
        (
            "text-classifier-20240115-001",
            LabelRef("text-classifier-20240115-001", "text-classifier", "20240115", 1),
        ),
        ("digits", NameRef("digits")),
        ("model.onnx", PathRef("model.onnx")),
        ("/srv/model.onnx", PathRef("/srv/model.onnx")),
        ("./package", PathRef("./package")),
        ("../package", PathRef("../package")),
        ("packages/digits", PathRef("packages/digits")),
        ("package/", PathRef("package/")),
        ("~/package", PathRef("~/package")),
        (".", PathRef(".")),
    ],
)
def test_every_form_of_a_reference_is_read(text: str, expected: object) -> None:
    assert parse_ref(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "digits@",
        "@production",
        "digits@latest",
        "digits@Production",
        "digits@v3",
        "digits@12",
        "digits@production~",
        "digits@production~x",
        "digits@production\n",
        "digits\n",
        "digits:latest",
        "digits/0",
        "digits:12\n",
        "digits/1234567890123",
        "digits:٣",
        "models:/digits",
        "models:/../etc/1",
        "-digits",
        " digits",
        "mlx.journal.digits",
        "mlx.journal.digits/1",
        "=cmd()",
        "dig\x00its",
        "digits@pro\x1b[31m",
    ],
)
def test_what_is_no_reference_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_ref(text)

    assert caught.value.hint or "journal" in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 128, "digits-20240115-001"])
def test_a_name_may_have_letters_digits_dots_dashes_and_underscores(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 129, ".hidden", "a/b", "a:b", "a\n", "ä", "a b", "..", "model.onnx"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "V12", "1", "a.b", "A", "a\n", "", "x" * 64])
def test_aliases_that_could_be_taken_for_something_else_are_refused(alias: str) -> None:
    with pytest.raises(UsageError):
        check_alias(alias)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        ref = parse_ref(text)
    except UsageError:
        return
    if isinstance(ref, AliasRef | VersionRef | NameRef | LabelRef):
        assert is_name(ref.name)
