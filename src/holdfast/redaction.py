"""Remove keys and passwords from text. No other module knows how they look.

Errors, hooks, checkpoints and the input of a summarizer all pass through here. A secret is recognized by its own form
(a known prefix, a private key), by its place (a header, an address, a command), or by the name that it is assigned to.
A match must be certain: it is removed from the text, and names in code, hashes, ids and placeholders must stay. No
match extends across `<` or `[`, so no frame can be removed with a secret.

Each look ahead or back is bounded, and no part of a text is read again from each of its positions, so the time grows
with the text only. A pattern runs only where its words occur.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal, TypeAlias

from holdfast.text import lazy_pattern

SecretKind: TypeAlias = Literal["key", "bearer token", "named secret", "private key", "password in a URL"]
_Redaction: TypeAlias = tuple[int, int]
"""Where a secret begins, and where it ends."""
_Rules: TypeAlias = tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]
"""Patterns, each with texts in small letters of which one must occur. A first group is what stays of a match."""

REDACTED_MARK = "[redacted]"
MIN_SECRET_CHARS, LONG_SECRET_CHARS = 6, 16
"""The shortest value that counts as a secret after a certain name, and after a less certain one."""

# Private keys, also with escaped line breaks of JSON, and their Base64, which contains "PRIVATE" at some offset.
_BREAK = r"(?:\s|\\[nr]){1,4}"
_PRIVATE_KEYS: _Rules = (
    (("private key",), lazy_pattern(
        r"(-----BEGIN [A-Z0-9 ]{0,20}PRIVATE KEY(?: BLOCK)?-----)"
        r"(?:(?:[A-Za-z0-9+/=\s\\:,.()@_]|-(?!-)){0,20000}(?=-----END )|(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{40,})+"
        r"(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{16,})?)"
    )),
    (("private-lines: ",), lazy_pattern(
        rf"(Private-Lines: [0-9]{{1,4}}{_BREAK})[A-Za-z0-9+/=]{{16,}}(?:{_BREAK}[A-Za-z0-9+/=]{{16,}})*"
    )),
    (("ls0tls1crudjti",), lazy_pattern(
        r"LS0tLS1CRUdJTi(?=[A-Za-z0-9+/]{0,40}(?:UFJJVkFURS|BSSVZBVE|QUklWQVRF))[A-Za-z0-9+/=]{20,}"
    )),
    (('"kty"',), lazy_pattern(r'("d"\s?:\s?")[A-Za-z0-9_\-]{40,}(?=")')),
)  # fmt: skip

# Keys with a known prefix. After a common prefix, only random characters are a key: letters and digits mixed, or a
# long run without a separator, but not a row of crosses.
_RANDOM = (
    r"(?![Xx]{4})(?=(?:[A-Za-z0-9]{0,9}[_\-]){0,8}(?:(?=[A-Za-z]{0,20}[0-9])[A-Za-z0-9]{10}|[A-Za-z0-9]{16})"
    r"|(?:[A-Za-z_\-]{0,40}[0-9]){3}[A-Za-z0-9_\-]{12})"
)
_KEY_BODIES = {
    rf"{_RANDOM}[A-Za-z0-9_\-]{{10,}}": (
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glptt- glcbt- glft- glsoat- glagent- glsa_ glc_ "
        "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- ya29. GOCSPX- sk_live_ sk_test_ rk_live_ rk_test_ whsec_ "
        "shpat_ shpss_ shpca_ shppa_ dckr_pat_ hvs. hvb. hvr. dp.pt. dp.st. dp.sa. lin_api_ sntrys_ sntryu_ nfp_ "
        "figd_ ntn_ gsk_ xai- pplx- nvapi- NRAK- tskey- pscale_tkn_ pscale_pw_ pscale_oauth_ sbp_ sb_secret_ CCIPAT_ "
        "CCIPRJ_ bkua_ lsv2_pt_ lsv2_sk_ sq0csp- sq0atp- sk-proj- sk-ant- sk-or- sk-svcacct- sk-admin- ATCTT3 tvly- "
        "rdme_ sgp_ tfp_ waka_ fo1_ dapi- shippo_live_ PMAK- ops_eyJ"
    ),
    rf"{_RANDOM}[A-Za-z0-9_\-]{{30,}}": "hf_ npm_ pypi- 1//0 r8_ ATATT3 ATBB AIza EZAK EZTK AKCp",
    r"[a-f0-9]{32,}": "rubygems_ dop_v1_ doo_v1_ dor_v1_ dapi pul- key- SK",
    r"[A-Za-z0-9_\-]{16,40}\.[A-Za-z0-9_\-]{16,}": "SG.",
    r"(?=[A-Z]{0,14}[0-9])[A-Z0-9]{16}(?![A-Z0-9])": "AKIA ASIA",
    r"[A-Z0-9]{6}-[A-Z0-9]{6,11}(?:-[A-Z0-9]{5}){3,4}": "A3-",
    r"[A-Z0-9]{50,}": "AGE-SECRET-KEY-1",
    r"[A-Z0-9.]{60,}": "dt0c01.",
    r"(?=[A-Za-z]{0,19}[0-9])[A-Za-z0-9]{20}(?![A-Za-z0-9])": "LTAI",
    r"(?=[a-z]{0,40}[0-9])[a-z0-9]{43}(?![a-z0-9])": "oy2",
    r"[A-Za-z0-9]{90,}": "EAA",
    rf"{_RANDOM}[A-Za-z0-9_\-]{{8,}}": "sk-",
}
_BODY_OF = {prefix: lazy_pattern(body) for body, prefixes in _KEY_BODIES.items() for prefix in prefixes.split()}
_KEPT = {prefix: "sk-" for prefix in _BODY_OF if prefix.startswith("sk-")}
"""What stays of a prefix, if not all of it."""
_OWN_WORD = frozenset({"sk-", "hf_", "npm_", "key-", "pul-", "SK", "r8_", "oy2", "glc_", "sgp_", "ntn_", "xai-"})
"""Prefixes that may be the end of another word; the others are found glued to a name too."""
_IN_BASE64 = frozenset({"AIza", "EAA", "AKCp", "LTAI", "ATBB", "EZAK", "EZTK", "SK", "oy2", "ATATT3", "ATCTT3"})
"""Prefixes that encoded data may contain by chance."""


def _alternatives(words: Iterable[str]) -> str:
    """Return a pattern of words by their first letter, the longest first, which `re` searches faster than a list."""
    grouped = groupby(sorted(words, key=lambda word: (word[0], -len(word), word)), key=lambda word: word[0])
    return "|".join(
        f"{re.escape(first)}(?:{'|'.join(re.escape(one[1:]) for one in group)})" for first, group in grouped
    )


_KEY_PREFIX = lazy_pattern(_alternatives(_BODY_OF))
# A run of token characters is entered only at its start, and its first `eyJ` decides: a search that began again at
# each `eyJ` of a long run would take time that grows with the square of the run.
_JWT = lazy_pattern(
    r"(?<![A-Za-z0-9_\-])((?>[A-Za-z0-9_\-]*?(?:\b|(?<=\\[nrtbf]))eyJ))[A-Za-z0-9_\-]{8,}+"
    r"\.eyJ[A-Za-z0-9_\-]{8,}+\.[A-Za-z0-9_\-]{8,}"
)
# Keys without a prefix.
_KEY_SHAPES: _Rules = (
    (("-us",), lazy_pattern(r"\b[0-9a-f]{32}-us[0-9]{1,2}\b")),
    ((":aa",), lazy_pattern(r"\b([0-9]{8,10}:)AA[A-Za-z0-9_\-]{32,34}(?![A-Za-z0-9_\-])")),
    (("q~",), lazy_pattern(r"\b[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.\-]{31,34}")),
    (
        (".",),
        lazy_pattern(r"[MNO](?<![A-Za-z0-9_\-][MNO])[A-Za-z0-9_\-]{23,25}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{27,40}"),
    ),
    (
        ("hooks.slack.com/",),
        lazy_pattern(r"(hooks\.slack\.com/(?:services|workflows|triggers)/)(?=[TE][A-Z0-9])[A-Za-z0-9/_\-]{16,}"),
    ),
    (("/api/webhooks/",), lazy_pattern(r"(/api/webhooks/)[0-9]{10,20}/[A-Za-z0-9_\-]{30,}")),
    (("/webhookb2/",), lazy_pattern(r"(/webhookb2/)[A-Za-z0-9@/\-]{30,}")),
    (("hooks.zapier.com/",), lazy_pattern(r"(hooks\.zapier\.com/hooks/catch/)[0-9]{4,12}/[A-Za-z0-9]{5,12}")),
)

# Headers. "Bearer authentication." is prose: a token contains a digit, or ends with `=`.
_ASSIGN = r"[\"'\\]{0,4}[ \t]{0,4}[:=][ \t]{0,4}[\"'\\]{0,4}"
_BEARER: _Rules = (
    (("bearer",), lazy_pattern(
        r"(bearer[ \t]{1,4})(?=[A-Za-z._~+/\-]{0,60}[0-9=])(?!OAuth|RFC)(?:[A-Za-z0-9._~+/\-]{10,}={0,2}"
        r"|[A-Za-z0-9._~+/\-]{7,}={1,2})",
        re.IGNORECASE,
    )),
)  # fmt: skip
_HEADERS: _Rules = (
    (("authorization",), lazy_pattern(
        rf"(authorization{_ASSIGN}(?:[A-Za-z][A-Za-z0-9_\-]{{1,24}}[ \t]{{1,4}})?)"
        r"(?!AWS4-|[A-Za-z_\-]{1,30}=\"?[A-Za-z0-9/])"
        r"(?=[A-Za-z._~/:\-]{0,60}(?:[0-9=+]|(?-i:[a-z][A-Z])))[A-Za-z0-9._~+/=:\-]{8,}+(?![(\[])",
        re.IGNORECASE,
    )),
    (("signature=", "response="), lazy_pattern(r"((?:signature=|response=\\?\"))[0-9a-f]{32,}", re.IGNORECASE)),
    (("cookie: ", "cookie:", "cookie=", 'cookie"', "cookie'", " -b", "--cookie"), lazy_pattern(
        rf"((?<![a-z\-])cookie{_ASSIGN}|curl\b[^\n<\[]{{0,200}}? (?:-b|--cookie) ?[\"'])"
        r"(?=[A-Za-z0-9_.\-]{1,64}=[^\s=])(?=[^\r\n\"'\\<\[#0-9]{0,200}[0-9])[^\r\n\"'\\<\[#]{4,}",
        re.IGNORECASE,
    )),
    (("set-cookie",), lazy_pattern(
        rf"(set-cookie{_ASSIGN}[A-Za-z0-9_.\-]{{1,64}}=)[^\s;,\"'\\<\[]{{8,}}", re.IGNORECASE
    )),
    (("sessionid=", "session_id=", "phpsessid=", "connect.sid="), lazy_pattern(
        r"((?:jsessionid|phpsessid|sessionid|session_id|connect\.sid)=)(?=[A-Za-z%]{0,40}[0-9])[A-Za-z0-9%._\-]{16,}",
        re.IGNORECASE,
    )),
)  # fmt: skip

# Commands and files that give a password by its place.
_GIVEN = r"(?![$<\[{\-%])[^\s\"'<\[]{4,}"
_PLACED: _Rules = (
    (("curl ",), lazy_pattern(
        r"(curl [^\n<\[]{0,200}?(?:-u|-U|--user|--proxy-user)[ =]{0,2}[\"']?[^\s:\"'$<\[/]{1,64}:)(?!//)" + _GIVEN
    )),
    (("mysql", "mariadb"), lazy_pattern(r"(m(?:ysql|ariadb)\w{0,8} [^\n|;&<\[]{0,200}?(?<= )-p[\"']?)" + _GIVEN)),
    (("sshpass", " login"), lazy_pattern(
        r"((?:sshpass|(?:docker|podman|az|oc|helm registry) login) [^\n|;&<\[]{0,200}?(?<= )-p ?[\"']?)"
        + _GIVEN
    )),
    (("auth=(",), lazy_pattern(r"(auth=\([\"'][^\"'\s<\[]{1,64}[\"'], ?[\"'])[^\"'\s<\[]{4,}")),
    (("redis-cli",), lazy_pattern(r"(redis-cli [^\n|;&<\[]{0,200}?(?<= )-a [\"']?)" + _GIVEN)),
    (("pass:",), lazy_pattern(r"(-pass(?:in|out)? pass:)" + _GIVEN)),
    (("login ",), lazy_pattern(r"(login[ \t]{1,4}[^\s<\[]{1,64}\s{1,8}password[ \t]{1,4})" + _GIVEN)),
    (("bindpw", "rootpw", "requirepass"), lazy_pattern(r"((?:bindpw|rootpw|requirepass)[ \t]{1,4})" + _GIVEN)),
    ((":5432:", ":6432:"), lazy_pattern(
        r"(:(?:5432|6432):[A-Za-z_*][^\s:<\[]{0,63}:[^\s:<\[]{1,64}:)(?=[^\s]{0,40}[0-9])" + _GIVEN
    )),
    (("identified by", "password '"), lazy_pattern(
        r"((?:IDENTIFIED BY|(?:WITH|SET|ENCRYPTED) PASSWORD)[ \t=]{1,4}')(?=[^'\s]{0,60}[0-9!@$%^&*])[^'\s<\[]{4,}",
        re.IGNORECASE,
    )),
    (("$",), lazy_pattern(
        r"(\$(?:[156y]|2[abxy]|apr1|argon2(?:id|i|d)|scrypt)\$(?:[0-9]{2}\$|rounds=[0-9]{1,9}\$)?)[A-Za-z0-9./+=,$]{16,}"
    )),
)  # fmt: skip

# A password in an address ends at the last `@` before a blank; a port is none. It contains a slash only after a user
# that is no host.
_EXAMPLE = r"[$%{<*]|(?:pass|password|passwd|PASS|PASSWORD|REDACTED)@"
_USER, _PORT = r"[^\s:/@\"'<>\[\]]", r"[0-9]{1,5}[/?,;)]|port\b"
_PASSWORDS_IN_URLS: _Rules = (
    (("://",), lazy_pattern(
        rf"(://(?:{_USER}{{0,100}}:(?!{_PORT}|{_EXAMPLE})(?=[^\s/\"'<>\[\]`\\]{{1,256}}@)"
        rf"|(?!localhost)(?:(?!\.){_USER}){{0,64}}:(?!{_PORT}|{_EXAMPLE})))"
        r"[^\s\"'<>\[\]`\\]{1,256}(?=@[A-Za-z0-9_\-.%])"
    )),
    (("://",), lazy_pattern(r"(://)(?=(?:[A-Za-z_\-]{0,40}[0-9]){4})[A-Za-z0-9_\-]{20,200}(?=@)")),
)  # fmt: skip

_URL_USER = lazy_pattern(r"\A(?!sqlite:)([^:/@]*:/{0,2}[^:@]*:).+(?=@)", re.DOTALL)
_URL_OPTION = lazy_pattern(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)

# Names of secrets, searched in small letters. Each alternative begins with one letter, so that `re` passes over all
# others quickly.
_NAME = lazy_pattern(
    r"p(?:ass(?:w(?:or)?d|wort|phrase|code)?|wd?|r(?:ivate|eshared)[_\- ]?key)|kennwort|密码|口令|token"
    r"|s(?:ecret(?:[_-]?(?:access[_-]?)?key)?|ig|hared(?:[_-]?access)?[_\- ]?key|ubscription[_\- ]?key)"
    r"|a(?:pi[_\- ]?(?:key|secret)|(?:ccess|ccount|uth)[_\- ]?key|uth)"
    r"|encryption[_\- ]?key|master[_\- ]?key|functions[_\- ]?key|_key"
)
_PASSWORD_NAMES = ("pass", "pw", "kennwort", "密码", "口令")
_SIGN = (
    r"(?P<sign>[\"'\\\]]{0,4}[ \t]{0,4}(?::=|=>|:[ \t]?(?:&(?:'static )?str|str(?:ing)?)[ \t]?=|[:=：])[ \t]{0,4}"
    r"(?:[bru](?=[\"']))?|\([bru]?(?=[\"'])"
    r"|[\"']?,?(?:\s|\\n){1,20}[\"']?value[\"']?[ \t]{0,4}[:=][ \t]{0,4}"
    r"|(?P<spoken>[ \t]{1,4}(?:is|ist|was|war|lautet)[ \t]{0,2}:?[ \t]{1,4}|是[ \t]{0,4})"
    r"|(?P<space>[ \t]{1,4})|(?P<tag>>))"
)
_ASSIGNED = lazy_pattern(
    r"(?:[_-]?(?:[0-9]{1,2}|prod(?:uction)?|staging|stage|dev|test|live|base|value|main|primary|secondary))?"
    rf"{_SIGN}(?:(?P<quote>\\{{0,3}}[\"'“`])(?:base64:)?(?P<quoted>[^\s\"'`\\<\[“”]{{1,128}})"
    r"|(?:base64:)?(?P<bare>(?:[A-Za-z0-9+/_=~!@$%^*\-]|&(?!\w{1,40}=)|[.?](?=\w)){1,128}))",
    re.IGNORECASE,
)
_MORE_QUOTED = lazy_pattern(r"[^\s\"'`\\<\[“”]*+")
_MORE_BARE = lazy_pattern(r"(?>(?:[A-Za-z0-9+/_=~!@$%^*\-]|&(?!\w{1,40}=)|[.?](?=\w))*)")
# What is assigned to the name of a secret and is none: variables, placeholders, references, algorithms and types.
_NO_SECRET = lazy_pattern(
    r"(?:ctrl|alt|shift|cmd|meta)[+-]|#[0-9a-f]{6,8}\Z|\$\{|\$\(|\$[A-Za-z_]\w*\Z|%\w+%|%\(|[{<*@]|your|change[_-]?me|x{4}|\.{3}|placeholder|insert|replace|redacted|dummy"
    r"|[a-z][a-z0-9+.\-]{1,15}://|(?:arn|vault|ssm|op|env|ref|file|urn|kms|sha[0-9]{1,3}|md5):|v?[0-9]+(?:\.[0-9]+)+"
    r"|(?:sha|hs|rs|es|aes|rsa|utf|base|x|int|uint|varchar|char|string|oauth|ed|curve|blake|argon|pbkdf|o|cl)-?[0-9]{1,5}"
    r"(?:[a-z]{0,2}|[-_][a-z_]{1,20})\Z"
    r"|(?:~|\.{0,2})/(?-i:\.?[a-z]{1,20}|Users)(?:[/._\-][\w/.\-]*)?\Z",
    re.IGNORECASE,
)
_GIVES_VALUE = lazy_pattern(r"(?:--|\b(?:ENV|ARG|set) )[A-Za-z0-9_.\-]{0,40}\Z")
_SPOKEN_METHOD = lazy_pattern(r"sha|md5|base\d|bcrypt|argon|pbkdf|utf|encod|hash|encrypt", re.IGNORECASE)
_CODE_NAME = lazy_pattern(
    r"[A-Za-z]+[0-9]{0,2}(?:_(?:[A-Za-z]+[0-9]{0,2}|[0-9]{1,3}))+"
    r"|(?i:\w{0,40}(?:password|token|secret|key|auth)[0-9]{0,2})|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
)
_WORDS = lazy_pattern(
    r"(?:[a-z]+|v[0-9]{1,3})(?:[_-](?:[a-z]+|v?[0-9]{1,3}))+|(?:[A-Z][a-z]+[0-9]{0,2})+"
    r"|[A-Za-z]{2,}[0-9]{1,5}(?:[A-Z][a-z]+)+|[A-Za-z_][\w\-]*(?:\.[A-Za-z_][\w\-]*)+"
    r"|[a-z][a-z0-9_.\-]*(?:/[a-z0-9_.\-]+)+|[\w.\-]+\.(?:pem|key|crt|p12|pfx|jks|json|ya?ml|txt|env|py|js|ts|go|pub|asc)"
)


def redact_text(text: str) -> str:
    """Return a text without anything that looks like a key or a password; the prefix that names its kind stays."""
    return redact_and_count(text)[0]


def redact_and_count(text: str) -> tuple[str, dict[SecretKind, int]]:
    """Return a text without keys and passwords, and how many of each kind were removed."""
    lower = _in_small_letters(text)
    counts: Counter[SecretKind] = Counter()
    text, counts["private key"] = _apply_rules(_PRIVATE_KEYS, text, lower)
    text, counts["key"] = _redact_keys(text, lower)
    text, counts["bearer token"] = _apply_rules(_BEARER, text, lower)
    text, placed = _apply_rules((*_HEADERS, *_PLACED), text, lower)
    text, named = _redact_spans(text, _named_secrets(text))
    counts["named secret"] = placed + named
    if "@" in text:
        text, counts["password in a URL"] = _apply_rules(_PASSWORDS_IN_URLS, text, lower)
    return text, {kind: count for kind, count in counts.items() if count}


def redact_url(url: str) -> str:
    """Return the URL of a store without its password, whatever the password looks like; a file has none.

    In a text, `redact_text` has to leave alone what is only an example, such as `$NAME`.
    """
    url = _URL_OPTION.sub(r"\1[redacted]", url)
    return redact_text(_URL_USER.sub(r"\1[redacted]", url, count=1))


def redact_keys(text: str) -> str:
    """Return a text without keys that have a known form: only those can be recognized in a single word."""
    lower = _in_small_letters(text)
    if _KEY_PREFIX.search(text) is None and "eyJ" not in text:
        return _apply_rules(_KEY_SHAPES, text, lower)[0]  # as for most words: none of the other forms can match
    return _redact_keys(text, lower)[0]


def _apply_rules(rules: _Rules, text: str, lower: str) -> tuple[str, int]:
    """Return a text without what the rules match, and how much that was; a rule whose words do not occur is skipped."""
    removed = 0
    for words, pattern in rules:
        for word in words:  # a loop, because this runs for every word of an output, and `any` takes twice as long
            if word in lower:
                text, count = pattern.subn(rf"\1{REDACTED_MARK}" if pattern.groups else REDACTED_MARK, text)
                removed += count
                break
    return text, removed


def _redact_keys(text: str, lower: str) -> tuple[str, int]:
    text, tokens = _JWT.subn(rf"\1{REDACTED_MARK}", text) if "eyJ" in text else (text, 0)
    text, shapes = _apply_rules(_KEY_SHAPES, text, lower)
    text, keys = _redact_spans(text, _prefixed_keys(text))
    return text, tokens + shapes + keys


def _prefixed_keys(text: str) -> Iterator[_Redaction]:
    end = 0
    for found in _KEY_PREFIX.finditer(text):
        prefix, start = found[0], found.start()
        # Without this, a run of prefixes would be read to its end from each of them.
        if start < end or (prefix in _OWN_WORD and _is_after(text, start, "")):
            continue
        if prefix in _IN_BASE64 and _is_after(text, start, "+/"):
            continue
        if body := _BODY_OF[prefix].match(text, found.end()):
            end = body.end()
            yield start + len(_KEPT.get(prefix, prefix)), end


def _is_after(text: str, start: int, signs: str) -> bool:
    """Return whether a letter, a digit or one of some signs precedes; a letter of an escaped line break does not."""
    before = text[start - 1 : start]
    is_escape = before in "nrtbf" and text[max(0, start - 2) : start - 1] == "\\"
    return bool(before) and (before.isalnum() or before in signs) and not is_escape


def _named_secrets(text: str) -> Iterator[_Redaction]:
    end = 0
    for found in _NAME.finditer(_in_small_letters(text)):
        assigned = _ASSIGNED.match(text, found.end()) if found.start() >= end else None
        if assigned is None or not _is_named_secret(text, found, assigned):
            continue
        which, more = ("bare", _MORE_BARE) if assigned["quote"] is None else ("quoted", _MORE_QUOTED)
        rest = more.match(text, assigned.end(which))
        end = rest.end() if rest else assigned.end(which)
        yield assigned.start(which), end


def _is_named_secret(text: str, name: re.Match[str], assigned: re.Match[str]) -> bool:
    """Return whether a value that follows the name of a secret is one."""
    value, is_quoted = assigned["quoted"] or assigned["bare"], assigned["quote"] is not None
    after = text[assigned.end() : assigned.end() + 2]
    if _NO_SECRET.match(value) or not _is_name(text, name, assigned, value):
        return False
    is_password = name[0].startswith(_PASSWORD_NAMES)
    if not _is_mixed(value, is_password=is_password, is_quoted=is_quoted):
        return False
    if assigned["tag"] and after != "</":
        return False
    if not is_quoted and (after[:1] in {"(", "["} or after == "<u"):
        return False
    is_variable = text[name.start() : name.end()].isupper() and assigned["sign"] in {"=", ":"}
    if not (is_quoted or is_variable) and _CODE_NAME.fullmatch(value):
        return False
    return is_password or not _WORDS.fullmatch(value)


def _is_name(text: str, name: re.Match[str], assigned: re.Match[str], value: str) -> bool:
    """Return whether a word that may name a secret does so here; some do only with a certain sign or a long value."""
    start, before = name.start(), text[max(0, name.start() - 1) : name.start()]
    is_long = len(value) >= LONG_SECRET_CHARS
    if text[max(0, start - 11) : start].lower().endswith(("publickey", "public_key", "public_", "public-")):
        return False
    if before == ":" and assigned["sign"].startswith(":"):  # the name of a resource: `arn:…:secret:…`
        return False
    if assigned["space"]:
        return _GIVES_VALUE.search(text[max(0, start - 48) : start]) is not None and not value.startswith("-")
    if assigned["sign"].startswith("("):  # `setPassword("…")`
        return name[0].startswith(_PASSWORD_NAMES) and (before == "." or text[start].isupper())
    if assigned["spoken"]:
        is_method = _SPOKEN_METHOD.match(value)
        return (name[0].startswith(_PASSWORD_NAMES) or is_long) and not is_method
    match name[0]:
        case "pass" | "pw":
            return not before.isalnum()
        case "auth":
            return before in {"_", '"', "'"} and (before == "_" or assigned["quote"] is not None)
        case "sig":
            return before in {"?", "&"} and is_long
        case "_key":
            label = text[max(0, start - 8) : name.end()]
            is_other = label.endswith(("PRIMARY_KEY", "CACHE_KEY", "SORT_KEY", "FOREIGN_KEY", "PUBLIC_KEY"))
            is_variable = label[-5:].isupper() and label[-5:-4].isalnum()
            return is_variable and is_long and not is_other and not _CODE_NAME.fullmatch(value)
        case _:
            return True


def _is_mixed(value: str, *, is_password: bool, is_quoted: bool) -> bool:
    """Return whether a value is no word and no number: most secrets contain letters and digits."""
    if len(value) < MIN_SECRET_CHARS:
        return False
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    if not is_password:
        return has_digit and has_letter
    is_base64 = value.endswith("=") and len(value) % 4 == 0 and not value.islower() and not value.isupper()
    has_sign = is_quoted and any(sign in value for sign in "!@$%^&*?+~")
    return has_digit or (has_letter and (is_base64 or has_sign))


def _redact_spans(text: str, spans: Iterable[_Redaction]) -> tuple[str, int]:
    """Return a text with a mark in place of each span, and how many there were."""
    pieces: list[str] = []
    end = 0
    for start, stop in spans:
        pieces += text[end:start], REDACTED_MARK
        end = stop
    return ("".join([*pieces, text[end:]]), len(pieces) // 2) if pieces else (text, 0)


def _in_small_letters(text: str) -> str:
    """Return a text in small letters, each at its place: only one letter becomes longer, and is left out."""
    return text.replace("\u0130", " ").lower()


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
