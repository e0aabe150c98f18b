"""JUnit XML: one test case per check, with the measured value and the threshold in every message."""

import xml.etree.ElementTree as ET

from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict

# A check that could not be made is an error in JUnit's words, never a success.
_ELEMENTS = {Verdict.FAIL: "failure", Verdict.UNDECIDED: "error", Verdict.ERROR: "error"}


def junit_xml(result: Result) -> str:
    """Write the result's checks as one test suite; a result without checks gives one case of its own.

    A case is called by its question, such as `accuracy max_drop 1pp [slice lang=de]`. One that was left out
    on purpose is skipped; its numbers are properties.
    """
    checks = result.report.checks or (_overall(result),)
    suite = ET.Element("testsuite", name=_text(f"mlx {result.command}: {result.report.title}"))
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for check in checks:
        element = "skipped" if check.skipped else _ELEMENTS.get(check.verdict)
        if element:
            counts[element] += 1
        suite.append(_case(result, check, element))
    suite.set("tests", str(len(checks)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def message_of(check: Check) -> str:
    """The answer in one line: the verdict, the value, the threshold and the reason."""
    measured = f" is {check.measured}" if check.measured else ""
    part = f" in {check.part}" if check.part else ""
    threshold = f" (threshold {check.threshold})" if check.threshold else ""
    reason = f": {check.message}" if check.message else ""
    return f"{check.verdict}: {check.name}{part}{measured}{threshold}{reason}"


def _case(result: Result, check: Check, element: str | None) -> ET.Element:
    names = {"classname": _text(_class_name(result, check)), "name": _text(check.title)}
    place = {"file": _text(check.file)} if check.file else {}
    if check.file and check.line:
        place["line"] = str(check.line)
    case = ET.Element("testcase", {**names, **place, "time": "0"})
    if check.values:
        properties = ET.SubElement(case, "properties")
        for name, value in check.values:
            ET.SubElement(properties, "property", name=_text(name), value=_text(value))
    message = message_of(check)
    if element:
        ET.SubElement(
            case, element, message=_text(f"{check.skipped}; {message}" if check.skipped else message)
        )
    ET.SubElement(case, "system-out").text = _text(message)
    return case


def _class_name(result: Result, check: Check) -> str:
    # Viewers make packages of the dots: gates are found by their data, whatever command judged them.
    return f"mlx.{check.group}" if "." in check.group else f"mlx.{result.command}.{check.group or 'checks'}"


def _overall(result: Result) -> Check:
    verdict = result.verdict or Verdict.PASS
    return Check(result.command, verdict, measured=result.report.summary, threshold="")


def _text(text: str) -> str:
    return printable(text, limit=4096)
