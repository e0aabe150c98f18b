"""The metrics of several processes as one page: every sample says whose it is, and nothing is added up.

Sums would fall when a process starts anew, which a counter must never do; who wants them asks for
`sum without (worker)`.
"""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")
_COMMENT = re.compile(rb"# (?:HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) ")


def merge(pages: Mapping[str, bytes]) -> bytes:
    """One page in the Prometheus text format (0.0.4) out of one by each worker.

    Args:
        pages: what each process exposes, by a name that goes into the label `worker`. Names are our own: they
            hold no quotes, backslashes or line breaks.
    """
    comments: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for worker, page in pages.items():
        label = f'worker="{worker}"'.encode()
        family = b""
        for line in page.splitlines():
            comment = _COMMENT.match(line)
            if comment:
                family = comment[1]
                known = comments.setdefault(family, [])
                if len(known) < 2 and line not in known:
                    known.append(line)
            elif line and not line.startswith(b"#"):
                samples.setdefault(family, []).append(_labelled(line, label))
    lines = [line for family, found in samples.items() for line in (*comments.get(family, ()), *found)]
    return b"".join(line + b"\n" for line in lines)


def _labelled(line: bytes, label: bytes) -> bytes:
    match = _SAMPLE.match(line)
    if match is None:
        return line
    rest = line[match.end() :]
    if match[2] is None:
        return b"%b{%b}%b" % (match[1], label, rest)
    comma = b"" if rest.startswith(b"}") else b","
    return b"%b{%b%b%b" % (match[1], label, comma, rest)
