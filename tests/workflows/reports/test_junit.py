import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hostile import MARKUP

from mlx_platform.core.report import Report, Result
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.workflows.reports.junit import junit_xml

MakeResult = Callable[[str], Result]


def parsed(result: Result) -> ET.Element:
    return ET.fromstring(junit_xml(result).encode())  # noqa: S314 - our own text


def cases(*checks: Check) -> list[ET.Element]:
    return list(parsed(Result("eval", {}, Report("t", "s", checks=checks), Verdict.FAIL)))


@pytest.mark.parametrize("text", MARKUP)
def test_it_stays_well_formed_and_counts_what_was_not_a_pass(make_result: MakeResult, text: str) -> None:
    suite = parsed(make_result(text))

    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]


def test_a_case_is_called_by_its_question_and_found_by_its_data() -> None:
    check = Check(
        "accuracy", Verdict.FAIL, "-2 pp", "max_drop 1pp", group="gates.test", part="lang=de", file="g.toml",
        line=7,
    )  # fmt: skip
    (case,) = cases(check)

    assert case.get("name") == "accuracy max_drop 1pp [slice lang=de]"
    assert case.get("classname") == "mlx.gates.test"
    assert (case.get("file"), case.get("line")) == ("g.toml", "7")


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("skipped", ["", "too small"])
def test_every_case_has_value_and_threshold_in_its_message(verdict: Verdict, skipped: str) -> None:
    (case,) = cases(Check("accuracy", verdict, "0.87", ">= 0.90", "why", skipped=skipped))

    found = [element for tag in ("failure", "error", "skipped") for element in case.findall(tag)]
    told = [str(element.get("message")) for element in found] + [str(case.findtext("system-out"))]
    assert all("0.87" in text and ">= 0.90" in text for text in told)
    assert len(found) == (0 if verdict is Verdict.PASS and not skipped else 1)


def test_a_failure_an_error_and_what_was_left_out_are_told_apart() -> None:
    tags = [
        [element.tag for element in case if element.tag != "system-out"]
        for case in cases(
            Check("a", Verdict.FAIL, "", ""),
            Check("b", Verdict.ERROR, "", ""),
            Check("c", Verdict.UNDECIDED, "", ""),
            Check("d", Verdict.FAIL, "", "", skipped="level = warn"),
            Check("e", Verdict.PASS, "", ""),
        )
    ]

    assert tags == [["failure"], ["error"], ["error"], ["skipped"], []]


def test_the_numbers_of_a_check_are_properties() -> None:
    (case,) = cases(Check("accuracy", Verdict.PASS, "", "", values=(("measured", "0.9"), ("rows", "500"))))

    properties = {element.get("name"): element.get("value") for element in case.iter("property")}
    assert properties == {"measured": "0.9", "rows": "500"}


def test_a_result_without_checks_is_a_case_of_its_own() -> None:
    (case,) = cases()

    assert case.find("failure") is not None
