"""Remove keys and passwords from text. No other module knows the patterns.

Errors, the output of hooks and the input of a summarizer all pass through here. A pattern must be certain: a
match is removed from the text, and names in code must stay. No pattern matches across `<`, `[` or `#`, so no
frame and no heading can be removed with a secret.
"""

import re
from collections import Counter
from typing import Literal, TypeAlias

SecretKind: TypeAlias = Literal["key", "bearer token", "named secret", "private key", "password in a URL"]

REDACTED_MARK = "[redacted]"
# A word begins here, also after an escaped line break or tab of JSON.
_EDGE = r"(?:\b|(?<=\\[nrtbf]))"
_KEY = re.compile(
    rf"{_EDGE}(sk-|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|xapp-|AIza|ya29\.|[sr]k_(?:live|test)_|whsec_|shpat_)"
    r"[A-Za-z0-9_\-]{8,}"
    rf"|{_EDGE}(A[KS]IA)[A-Z0-9]{{12,}}"
    rf"|{_EDGE}(hf_|npm_|pypi-|dop_v1_)[A-Za-z0-9_\-]{{30,}}"
)
# A run of token characters is entered only at its start, and its first `eyJ` decides: a search that began again at
# each `eyJ` of a long run would take time that grows with the square of the run.
_JWT = re.compile(
    rf"(?<![A-Za-z0-9_\-])((?>[A-Za-z0-9_\-]*?{_EDGE}eyJ))[A-Za-z0-9_\-]{{8,}}+"
    r"\.eyJ[A-Za-z0-9_\-]{8,}+\.[A-Za-z0-9_\-]{8,}"
)
# "Bearer authentication." is prose: a token contains a digit or a sign, or begins with 24 letters.
_BEARER = re.compile(
    rf"{_EDGE}(Bearer\s+)(?=[A-Za-z_\-]*(?:[0-9=+~]|[./][A-Za-z0-9])|[A-Za-z_\-]{{24}})[A-Za-z0-9._~+/=\-]{{8,}}",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"(://[^\s:/@]*:)[^\s/@]+@")
# Named as a secret, and with letters and digits mixed: `token = get_token()` and `password: str` are code.
_MIXED = r"(?=[^\s0-9]{0,80}[0-9])(?=[^\sa-z]{0,80}[a-z])[A-Za-z0-9+/_=~!@$%^&*\-]{6,}+(?![\w(\[]|\.\w)"
_PASSWORD = r"passw(?:or)?d|passwort|kennwort|pwd|passphrase"  # noqa: S105 - a pattern, not a password
_ASSIGNED = re.compile(
    r"((?:(?<![a-z])|(?<=\\[nrtbf]))(?:api[_-]?key|secret(?:[_-]?(?:access)?[_-]?key)?|access[_-]?key"
    rf"|(?:access|auth|refresh)[_-]?token|token|{_PASSWORD}|private[_-]?key)"
    r"[\"'\\]{0,4}[ \t]{0,4}[:=][ \t]{0,4}[\"'\\]{0,4})"
    rf"{_MIXED}",
    re.IGNORECASE,
)
# In prose; "the password is sha256-hashed" names a method, not a password.
_SPOKEN_PASSWORD = re.compile(
    rf"((?<![a-z])(?:{_PASSWORD})[ \t]{{1,4}}(?:is|ist|was|war)[ \t]{{0,2}}:?[ \t]{{1,4}}[\"'“`]{{0,2}})"
    rf"(?!sha|md5|base\d|bcrypt|argon|pbkdf|utf|encod|hash|encrypt){_MIXED}",
    re.IGNORECASE,
)
_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,20}PRIVATE KEY-----)"
    r"(?:(?:[A-Za-z0-9+/=\s\\:,]|-(?!-)){0,20000}(?=-----END )|(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{40,})+"
    r"(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{16,})?)"
)


def redact_text(text: str) -> str:
    """Return a text without anything that looks like a key or a password; the prefix that names its kind stays."""
    return redact_and_count(text)[0]


def redact_and_count(text: str) -> tuple[str, dict[SecretKind, int]]:
    """Return a text without keys and passwords, and how many of each kind were removed."""
    counts: dict[SecretKind, int] = {}
    if "-----BEGIN " in text:
        text, counts["private key"] = _PEM.subn(rf"\1{REDACTED_MARK}", text)
    text, counts["key"] = _redact_keys(text)
    text, counts["bearer token"] = _BEARER.subn(rf"\1{REDACTED_MARK}", text)
    text, assigned = _ASSIGNED.subn(rf"\1{REDACTED_MARK}", text)
    text, spoken = _SPOKEN_PASSWORD.subn(rf"\1{REDACTED_MARK}", text)
    text, in_urls = _PASSWORD_IN_URL.subn(rf"\1{REDACTED_MARK}@", text)
    counts["named secret"], counts["password in a URL"] = assigned + spoken, in_urls
    return text, {kind: count for kind, count in counts.items() if count}


def redact_keys(text: str) -> str:
    """Return a text without keys that have a known prefix: only those can be recognized in a single word."""
    return _redact_keys(text)[0]


def _redact_keys(text: str) -> tuple[str, int]:
    text, tokens = _JWT.subn(rf"\1{REDACTED_MARK}", text) if "eyJ" in text else (text, 0)
    text, keys = _KEY.subn(lambda found: f"{next(filter(None, found.groups()))}{REDACTED_MARK}", text)
    return text, tokens + keys


class Redactor:
    """Removes keys and passwords from texts and counts them by kind, each text once. It never stores a secret."""

    def __init__(self) -> None:
        self._counts: Counter[SecretKind] = Counter()
        self._seen: set[int] = set()

    def __call__(self, text: str) -> str:
        """Return a text without keys and passwords, and count what was removed."""
        without, counts = redact_and_count(text)
        if counts and hash(text) not in self._seen:
            self._seen.add(hash(text))
            self._counts.update(counts)
        return without

    @property
    def counts(self) -> tuple[tuple[str, int], ...]:
        """How many secrets of each kind were removed so far."""
        return tuple(sorted(self._counts.items()))
