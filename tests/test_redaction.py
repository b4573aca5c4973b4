"""What is taken for a secret, and what is not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.redaction import Redactor, redact_and_count, redact_keys, redact_text
from tests.secrets_corpus import LOOK_ALIKES, PREFIXED, SECRET_FORMATS, SecretFormat

BODY = "MIIEpAIBAAKCAQEAx7vT2m0PqJ8cQwYfK1nZ0a9sD3eR5tY7uI9oP1aS3dF5gH7j"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}=\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SECRETS = [
    ("key sk-proj-abcdef123456 is wrong", "key sk-[redacted] is wrong"),
    ("ghp_0123456789abcdef", "ghp_[redacted]"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIA[redacted]"),
    ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_live_[redacted]"),
    ('{"text": "a\\nsk-abcdef123456\\tpassword=hunter2!"}', '{"text": "a\\nsk-[redacted]\\tpassword=[redacted]"}'),
    ("hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh", "hf_[redacted]"),
    (f"cookie {JWT};", "cookie eyJ[redacted];"),
    ("Authorization: Bearer abc.def-ghi=", "Authorization: Bearer [redacted]"),
    ("postgresql://me:hunter2@host/db", "postgresql://me:[redacted]@host/db"),
    ('{"password": "hunter2!", "user": "ann"}', '{"password": "[redacted]", "user": "ann"}'),
    ('{\\"api_key\\": \\"a1b2c3d4e5\\"}', '{\\"api_key\\": \\"[redacted]\\"}'),
    ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfi", "export AWS_SECRET_ACCESS_KEY=[redacted]"),
    (PEM, "-----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY-----"),
    (PEM.replace("\n", "\\n"), "-----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY-----"),
    (PEM[:130], "-----BEGIN RSA PRIVATE KEY-----[redacted]"),
    ("My password: hunter20. token", "My password: [redacted]. token"),
    ("password: Tr0ub4dor&3. Then", "password: [redacted]. Then"),
    ("the password is hunter22", "the password is [redacted]"),
    ("password is: hunter22, ok?", "password is: [redacted], ok?"),
    ("Passwort: geheim99", "Passwort: [redacted]"),
    ("password=a1b2c3", "password=[redacted]"),
    ("DEPLOY_KEY=8f3a9b2c7d1e6f40", "DEPLOY_KEY=[redacted]"),
    ("Das Kennwort ist geheim99.", "Das Kennwort ist [redacted]."),
]
NO_SECRETS = [
    "ask-me-anything, a risk-averse desk",
    "It uses Bearer authentication. The bearer certificates expire.",
    "password: str = Field(min_length=8)",
    "token = get_token(v2)",
    "secret=os.environ['A1']",
    "max_tokens=4096, token_count: 12345abc",
    "hf_compaction_worktree and npm_config_cache",
    "the asia-pacific-region",
    "see https://example.org:8080/a@2",
    "-----BEGIN PRIVATE KEY----- is how such a file begins.",
    "the password is base64 encoded",
    "the password is sha256-hashed",
    "token = settings.token2()",
    "password: str = field1.default",
    "token=123456789",
    "password=a1b2c",
    "DEPLOY_KEY=8f3a9b2c7d1e6f4",
    "my_KEY=8f3a9b2c7d1e6f408f3a9b2c7d1e6f40",
    "?sig=a1b2c3",
    "design sig=8f3a9b2c7d1e6f408f3a9b2c7d1e6f40",
    '"auth: 8f3a9b2c7d1e6f40',
]


@pytest.mark.parametrize(("text", "expected"), SECRETS)
def test_what_looks_like_a_key_or_a_password_is_in_no_text_and_no_error(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert str(HoldfastError(text)) == expected


@pytest.mark.parametrize("text", NO_SECRETS)
def test_words_and_code_about_secrets_are_none(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("one", SECRET_FORMATS, ids=lambda one: one.name)
def test_a_secret_of_every_known_format_goes_and_the_text_around_it_stays(one: SecretFormat) -> None:
    assert redact_text(one.shown) == one.redacted


@pytest.mark.parametrize("text", LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_what_looks_like_a_secret_and_is_none_stays(text: str) -> None:
    assert redact_text(text) == text


def test_the_corpus_is_as_large_as_it_says_and_names_each_format_once() -> None:
    assert (len(SECRET_FORMATS) >= 190, len(LOOK_ALIKES) >= 95) == (True, True)
    assert len({one.name for one in SECRET_FORMATS}) == len(SECRET_FORMATS)
    assert len({one.shown for one in SECRET_FORMATS}) == len(SECRET_FORMATS)


@pytest.mark.parametrize("one", [one for one in PREFIXED if " " not in one.secret], ids=lambda one: one.name)
def test_a_key_is_recognized_in_a_single_word(one: SecretFormat) -> None:
    assert one.secret not in redact_keys(one.kept + one.secret)


@given(st.lists(st.sampled_from([*SECRET_FORMATS, *LOOK_ALIKES.values()]), max_size=8))
def test_secrets_go_and_look_alikes_stay_in_any_company(chosen: list[SecretFormat | str]) -> None:
    texts = [(one, one) if isinstance(one, str) else (one.shown, one.redacted) for one in chosen]

    shown = redact_text("\n\n".join(text for text, _ in texts))

    assert shown == "\n\n".join(redacted for _, redacted in texts)
    assert redact_text(shown) == shown


@given(st.text(alphabet="İıſK :='\"passwordtoken0123456789aB", max_size=200))
def test_no_letter_moves_what_is_removed(text: str) -> None:
    assert redact_text(f"{text}\npassword=hunter22x\n").endswith("\npassword=[redacted]\n")


PIECES = [
    "<frame-12ab>",
    "[#3 user]",
    "\n",
    "password=",
    "Authorization: ",
    "-----BEGIN PRIVATE KEY-----",
    "https://a:",
]


@given(st.lists(st.sampled_from([*(text for text, _ in SECRETS), *(one.shown for one in SECRET_FORMATS), *PIECES])))
def test_what_is_clean_stays_as_it_is_and_no_frame_goes(texts: list[str]) -> None:
    once = redact_text("\n".join(texts))

    assert redact_text(once) == once
    once = redact_text("".join(texts))
    assert [once.count(mark) for mark in ("<frame-12ab>", "[#3 user]")] == [
        texts.count(mark) for mark in ("<frame-12ab>", "[#3 user]")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a1" * 75_000,
        "password=" * 15_000,
        "://a:" * 15_000,
        "-----BEGIN PRIVATE KEY-----",
        "token=token_" * 12_500,
        "curl -u a" * 15_000,
        "mysql -" * 15_000,
        "Cookie: a=b;" * 10_000,
        "Authorization: Basic " * 7_500,
        "sk-a_" * 25_000,
        "eyJaaaaaaaa." * 12_500,
        "ghp_" * 30_000,
        "ghp_a1b2c3d4e5f6" * 7_500,
        "password=a1b2c3" * 10_000,
        "login a\npassword" * 7_500,
        "$6$" * 37_500,
        "0123456789abcdef" * 10_000 + "-us1",
        "M" * 125_000 + ".",
        "SECRET_KEY=" * 12_500,
        "api_key: str =" * 10_000,
    ],
)
def test_a_long_text_takes_no_time(text: str) -> None:
    began = time.process_time()

    redact_text(text * (1 if len(text) > 100 else 5_000))

    assert time.process_time() - began < 1


def test_what_was_taken_out_is_counted_by_kind() -> None:
    text = (
        f"sk-proj-abcdef123456 and ghp_0123456789abcdef; Bearer abc.def-ghi= password=hunter2! {PEM} pg://me:pw@host/"
    )

    assert redact_and_count(text)[1] == {
        "private key": 1,
        "key": 2,
        "bearer token": 1,
        "named secret": 1,
        "password in a URL": 1,
    }
    assert [redact_and_count(one) for one in NO_SECRETS] == [(one, {}) for one in NO_SECRETS]


def test_a_redactor_counts_each_text_once_and_keeps_no_secret() -> None:
    redactor = Redactor()

    shown = [redactor(text) for text in ("sk-abcdef123456", "sk-abcdef123456", "again sk-abcdef123456", "nothing")]

    assert shown == ["sk-[redacted]", "sk-[redacted]", "again sk-[redacted]", "nothing"]
    assert redactor.counts == (("key", 2),)
    assert "abcdef123456" not in repr(vars(redactor))
