"""What clients sent, made fit to be looked at: secrets and personal data give way to what they are.

Rather too much is masked than too little. It is a net for those who look for a fault, no anonymisation.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mlx_platform.core.text import printable

MASKED = "[masked]"
_READ = 4096  # characters of a text that are looked at
_SHOWN = 1024
_TORN = 256  # what the end of a text that was cut could hide from the patterns
_LONG_NUMBER = 10**6

_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+@")
_TELLING = r"(?i)\b(pass(?:word|wd|phrase)?|pin|secret|token|bearer|basic|(?:api|access|private)?[ _-]?key)"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), "[key]"),
    (_CREDENTIALS, "[secret]@"),
    (re.compile(r"[^\s@<>\"'(),;:/\[\]]{1,128}@[^\s@<>\"'(),;:]+"), "[email]"),
    (re.compile(_TELLING + r"([\"']?\s{0,4}[:=]\s{0,4})\S+"), r"\1\2[secret]"),
    (re.compile(_TELLING + r"(\s(?:is\s)?)(?=\S*[\d_+/!$%&*=-])\S+"), r"\1\2[secret]"),
    (re.compile(r"\beyJ[\w-]{8,}(?:\.[\w-]*){0,4}"), "[key]"),
    (re.compile(r"\b(?:sk|pk|rk|gh[a-z]|glpat|xox[a-z]|AKIA|ASIA|AIza|hf|npm|pypi)[_-]?[\w-]{16,}"), "[key]"),
    (re.compile(r"\b(?=[\w+/=-]{0,64}\d)(?=[\w+/=-]{0,64}[A-Za-z])[\w+/=-]{24,}"), "[key]"),
    (re.compile(r"\b[A-Z]{2}\d{2}[A-Z0-9 ]{11,40}\b"), "[number]"),
    (re.compile(r"\b(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}\b"), "[number]"),
    (re.compile(r"\+?\(?\d(?:[\s().,:/_-]{0,3}\d){4,}"), "[number]"),
)
_PERSONAL = frozenset(
    (
        *("name", "surname", "firstname", "lastname", "fullname", "username", "user", "login", "nickname"),
        *("email", "mail", "phone", "telephone", "tel", "mobile", "fax", "contact"),
        *("address", "street", "city", "town", "zip", "zipcode", "postcode", "postal", "plz"),
        *("birth", "birthday", "birthdate", "dob", "ssn", "passport", "licence", "license", "taxid"),
        *("iban", "bic", "account", "card", "pan", "cvv", "cvc", "pin"),
        *("password", "passwd", "pwd", "secret", "token", "key", "apikey", "auth", "authorization", "cookie"),
        *("ip", "ipaddress", "mac", "imei", "latitude", "longitude", "lat", "lon", "gps"),
    )
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, slots=True)
class Blob:
    """Stands for bytes that are no text, such as an image."""

    size: int


def is_personal(column: str) -> bool:
    """Whether a column's name says that its values are nobody's business, such as `customer_email`."""
    words = [word.lower() for word in _WORDS.findall(column)]
    return not _PERSONAL.isdisjoint((*words, *("".join(pair) for pair in pairwise(words))))


def mask_text(text: str) -> str:
    """The text with mail addresses, long numbers, keys and passwords masked, cut where it is long."""
    whole = len(text) <= _READ
    shown = text if whole else text[:_READ]
    for pattern, instead in _PATTERNS:
        shown = pattern.sub(instead, shown)
    if not whole:
        shown = shown[:-_TORN] + "…"
    return printable(shown, _SHOWN)


def without_credentials(value: Any) -> Any:
    """A setting, or a table or list of them, without the user and password that a URL in it may carry."""
    if isinstance(value, str):
        return _CREDENTIALS.sub("[secret]@", value)
    if isinstance(value, dict):
        return {key: without_credentials(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_credentials(inner) for inner in value]
    return value


def mask_cell(value: object) -> object:
    """A value of a tensor or column as JSON has it: text and long whole numbers masked, bytes counted."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Blob):
        return f"[{value.size} bytes]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
            return str(value)
        if abs(value) >= _LONG_NUMBER and value == int(value):
            return "[number]"
    return value
