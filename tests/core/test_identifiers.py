"""What counts as an identifier."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger import identifiers as rule
from holdfast.core.ledger.identifiers import argument_text, distinct_identifiers, identifiers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("open src/core/a_file.py, then ./run.sh", ["src/core/a_file.py", "./run.sh"]),
        ("mail ann@example.org about 20251115", ["ann@example.org", "20251115"]),
        ("commit 3f9a2c1 broke parseConfig and HttpServer", ["3f9a2c1", "parseConfig", "HttpServer"]),
        ("set max_retry_count for order HATHAT5", ["max_retry_count", "HATHAT5"]),
        ("see README.md. It is 12 pages", ["README.md"]),
        ("请修改src/a.py里的parseConfig，然后运行", ["src/a.py", "parseConfig"]),
        ("in Übersicht/datei_1.md steht „fooBar“", ["Übersicht/datei_1.md", "fooBar"]),
        ("nothing to see here", []),
        ("run 550e8400-e29b-41d4-a716-446655440000 failed", ["550e8400-e29b-41d4-a716-446655440000"]),
        ("fixes ABC-123 and CVE-2024-31497 in UTF-8", ["ABC-123", "CVE-2024-31497"]),
        ("ask api.eu-1.example.com, not db01.internal.", ["api.eu-1.example.com", "db01.internal"]),
        ("first.last+tag@mail.example.co.uk wrote", ["first.last+tag@mail.example.co.uk"]),
        ("from v2.10 to 3.11.7-rc.1 on 192.168.0.12", ["v2.10", "3.11.7-rc.1", "192.168.0.12"]),
        ("it took 3.14 s, or 0.95 of it", []),
        ("self.history.facts and config.example.py", ["history.facts", "example.py"]),
    ],
)
def test_identifiers_are_read_off_by_rule(text: str, found: list[str]) -> None:
    assert list(identifiers(text)) == found


@given(st.text(alphabet="aB1_./@-+~ é\n\"',", max_size=80))
def test_reading_run_by_run_finds_what_the_rule_finds_in_the_whole_text(text: str) -> None:
    whole = [match.group().rstrip(".-,") for match in re.finditer(rule._PATTERN, text)]
    found = [name for name in whole if rule.IDENTIFIER_MIN_CHARS <= len(name) <= rule.IDENTIFIER_MAX_CHARS]

    assert list(identifiers(text)) == found
    assert distinct_identifiers(text) == set(found)


def test_a_long_run_of_data_is_no_name_and_takes_no_time() -> None:
    began = time.process_time()

    found = list(identifiers("a1" * 200_000 + " src/a.py"))

    assert found == ["src/a.py"]
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("length", "found"), [(200, ["src/a.py"]), (201, [])])
def test_a_run_of_up_to_200_characters_is_searched_for_names(length: int, found: list[str]) -> None:
    run = "src/a.py~".ljust(length, "z")

    assert (list(identifiers(run)), distinct_identifiers(run)) == (found, set(found))


def test_arguments_are_read_as_values_and_not_as_json() -> None:
    text = argument_text('{"text": "one\\nTwo\\nThree", "deep": [{"path": "a/b.py"}], "line": 1234, "on": true}')

    assert text == "one\nTwo\nThree\na/b.py\n1234"
    assert argument_text("not json") == "not json"


@pytest.mark.parametrize("key", ["ghp_T00lTextKey4b6N1cc9LmQ", "sk-proj-Sett1ngs0Key5m3W8zz", "AKIAIOSFODNN7EXAMPLE"])
def test_a_key_is_no_identifier_that_somebody_will_need_again(key: str) -> None:
    assert list(identifiers(f"token {key} of src/tides.py")) == ["src/tides.py"]
