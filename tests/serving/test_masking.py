import pytest

from mlx_platform.serving.masking import Blob, is_personal, mask_cell, mask_text, without_credentials


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to jane.doe+x@example.co.uk, please", "write to [email], please"),
        ("<jané@exämple.org>", "<[email]>"),
        ("call +49 (0) 171 / 123 45 67 now", "call [number] now"),
        ("card 4111-1111-1111-1111.", "card [number]."),
        ("born 1980-01-31", "born [number]"),
        ("SSN 123-45-6789", "SSN [number]"),
        ("account ١٢٣٤٥٦٧", "account [number]"),
        ("from 192.168.100.200", "from [number]"),
        ("IBAN DE89370400440532013000", "IBAN [number]"),
        ("IBAN GB29 NWBK 6016 1331 9268 19", "IBAN [number]"),
        ("at 2001:db8:0:0:1:0:0:1", "at [number]"),
        ("password=hunter", "password=[secret]"),
        ('{"api_key": "abc"}', '{"api_key": [secret]'),
        ("my password is hunter2", "my password is [secret]"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer [secret]"),
        ("use sk-proj1234567890abcdef today", "use [key] today"),
        ("AKIAIOSFODNN7EXAMPLE", "[key]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "[key]"),
        ("id 0123456789abcdef0123456789abcdef!", "id [key]!"),
        ("redis://user:pass@cache:6379/0", "redis://[secret]@cache:[number]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "[key]"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE and the end is cut", "[key]"),
    ],
)
def test_secrets_and_personal_data_give_way_to_what_they_are(text, masked):
    assert mask_text(text) == masked


@pytest.mark.parametrize(
    "text",
    ["", "the quick brown fox", "12 apples for 3.50", "room 1234", "the password is wrong", "10:30 on 5 May"],
)
def test_plain_text_stays_as_it_is(text):
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "filler", ["a", "a ", "1", "a@", "@", "AA11", "AA11 ", ":", "-", "a-", "key ", "key=", "((", "é"]
)
def test_no_text_takes_long_to_mask_or_is_shown_whole(filler):
    # A pattern that goes back and forth would not be done within the time-out of a test.
    assert len(mask_text(filler * 100_000)) <= 1024 * 6


def test_a_mail_address_that_a_cut_would_tear_apart_is_not_shown():
    for start in range(4000, 4100):
        shown = mask_text("- " * (start // 2) + "jane.doe@example.org")
        assert "jane" not in shown


def test_controls_cannot_reach_a_terminal():
    assert mask_text("a\x1b[2Jb\u202e") == "a\\u001b[2Jb\\u202e"


@pytest.mark.parametrize(
    "column",
    [
        "name",
        "customer_email",
        "CustomerEmail",
        "userName",
        "zip-code",
        "ZIP",
        "api_key",
        "apiKey",
        "date_of_birth",
        "IP",
    ],
)
def test_columns_that_are_named_after_personal_data_are_known(column):
    assert is_personal(column)


@pytest.mark.parametrize(
    "column", ["x", "petal_width", "p00", "text", "shipping", "tokens", "monkey", "keyboard"]
)
def test_other_columns_are_not(column):
    assert not is_personal(column)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (1, 1),
        (0.25, 0.25),
        (True, True),
        (999_999, 999_999),
        (1_000_000, "[number]"),
        (-5_550_100_200, "[number]"),
        (5550100200.0, "[number]"),
        (1234567.5, 1234567.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("a@b.de", "[email]"),
        (Blob(12), "[12 bytes]"),
        (None, None),
    ],
)
def test_numbers_that_may_name_somebody_are_masked(cell, shown):
    assert mask_cell(cell) == shown
    assert type(mask_cell(cell)) is type(shown)


def test_settings_are_shown_without_the_credentials_of_a_url():
    settings = {"port": 1, "cache": {"url": "rediss://u:p@h:6379/0", "more": ("redis://:p@h", "a@b", None)}}
    shown = {
        "port": 1,
        "cache": {"url": "rediss://[secret]@h:6379/0", "more": ["redis://[secret]@h", "a@b", None]},
    }
    assert without_credentials(settings) == shown
