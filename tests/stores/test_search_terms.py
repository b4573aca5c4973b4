"""Text is indexed by words, identifiers also by their parts, and text without spaces by pairs of characters."""

import pytest

from holdfast.stores.search_terms import index_body, index_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the parser reads 12 totals", ["the", "parser", "reads", "12", "totals"]),
        ("The END", ["the", "end"]),
        ("src/report/totals.py", ["src", "report", "totals", "py"]),
        ("parseTotals", ["parsetotals", "parse", "totals"]),
        ("JSONParser2", ["jsonparser2", "json", "parser", "2"]),
        ("snake_case, kebab-case", ["snake", "case", "kebab", "case"]),
        ("abc123", ["abc123"]),
        ("A1", ["a1", "a", "1"]),
        ("x" * 100, ["x" * 64]),
        ("X" * 100, ["x" * 64]),
        ("Отчёт готов", ["отчет", "готов"]),
        ("会议纪要 ok", ["会议", "议纪", "纪要", "要", "ok"]),
        ("Die Straße, ÜBERHÖHT", ["die", "strasse", "uberhoht"]),
        ("naïve cafe\u0301 İstanbul", ["naive", "cafe", "istanbul"]),
        ("ＡＢＣ１２３", ["abc123", "abc", "123"]),
        ("한국어", ["한국", "국어", "어"]),
        ("コードはＡＢＣ１２３です", ["コー", "ード", "ドは", "は", "abc123", "abc", "123", "です", "す"]),
        ("日", ["日"]),
        ("والبيت الكبير في بيت", ["والبيت", "بيت", "الكبير", "كبير", "في", "بيت"]),
        ("ובבית של הים", ["ובבית", "בבית", "בית", "של", "הים"]),
        ("ה" * 100, ["ה" * 64] * 3),
        ("left\ud800right", ["left", "right"]),
        (" \t\n\0_", []),
    ],
)
def test_a_text_is_split_into_the_words_of_the_index(text: str, words: list[str]) -> None:
    assert index_words(text) == words
    assert index_body(text) == " ".join(words)
