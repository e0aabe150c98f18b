"""JUnit XML: one test case per check, with the measured value and the threshold in every message."""

import xml.etree.ElementTree as ET

from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict

# A check that could not be made is an error in JUnit's words, never a success.
_ELEMENTS = {Verdict.FAIL: "failure", Verdict.UNDECIDED: "error", Verdict.ERROR: "error"}


def junit_xml(result: Result) -> str:
    """Write the result's checks as one test suite; a result without checks gives one case of its own."""
    checks = result.report.checks or (_overall(result),)
    suite = ET.Element("testsuite", name=_text(f"mlx {result.command}: {result.report.title}"))
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for check in checks:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=_text(f"mlx.{result.command}.{check.group or 'checks'}"),
            name=_text(f"{check.name} {check.threshold}".strip()),
        )
        element = "skipped" if check.skipped else _ELEMENTS.get(check.verdict)
        if element:
            counts[element] += 1
            ET.SubElement(case, element, message=_text(check.skipped or _message(check)))
        ET.SubElement(case, "system-out").text = _text(_message(check))
    suite.set("tests", str(len(checks)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _overall(result: Result) -> Check:
    verdict = result.verdict or Verdict.PASS
    return Check(result.command, verdict, measured=result.report.summary, threshold="")


def _message(check: Check) -> str:
    threshold = f" (threshold {check.threshold})" if check.threshold else ""
    reason = f": {check.message}" if check.message else ""
    return f"{check.verdict}: {check.name} is {check.measured}{threshold}{reason}"


def _text(text: str) -> str:
    return printable(text, limit=4096)
