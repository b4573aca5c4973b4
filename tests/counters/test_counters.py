"""Vocabularies, the formula, and the table of models."""

import builtins
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Budget
from holdfast.counters import vocabularies
from holdfast.counters.models import (
    ModelInfo,
    budget_for,
    describe_unknown_model,
    find_model,
    known_models,
    nearest_model,
)
from holdfast.counters.vocabularies import (
    CHUNK_CHARS,
    EstimatingCounter,
    bound_of,
    counter_for,
    model_family,
    tokenizer,
)

GOLDEN = {
    "o200k_base": ("Hello, world! 12345", [13225, 11, 2375, 0, 220, 7633, 2548]),
    "cl100k_base": ("Hello, world! 12345", [9906, 11, 1917, 0, 220, 4513, 1774]),
}
"""Ids as OpenAI's own tokenizer gives them."""

KINDS = {
    "prose": "The quick brown fox jumps over the lazy dog, and then it sleeps for hours. ",
    "code": "def handler(request: Request) -> Response:\n    return self.render(request.path, status=200)\n",
    "camel": "getUserAccountById(userAccountRepository.findFirstByName)\n",
    "json": '{"id": 1234567, "name": "widget", "tags": ["a", "b"], "price": 19.99}\n',
    "log": "2026-11-15T02:07:14.123Z INFO [worker-3] request_id=7f3a9c status=200 path=/v1/chat\n",
    "digits": "48151623 42 1234567 90210 8675309 ",
    "base64": "aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQgdGV4dA0KQWJjMTIzKy89",
    "chinese": "我们今天讨论一下如何在长对话中保持上下文窗口的大小,并且不丢失任何信息。",
    "japanese": "今日は長い会話をコンテキストに収める方法について話し合います。",
    "russian": "Сегодня мы обсудим, как удержать длинный разговор в пределах окна. ",
    "german": "Heute besprechen wir, wie man ein langes Gespräch im Fenster hält. ",
}


@pytest.mark.parametrize("vocabulary", GOLDEN)
def test_the_ids_are_those_of_the_reference(vocabulary: str) -> None:
    text, ids = GOLDEN[vocabulary]

    assert tokenizer(vocabulary).encode_ordinary(text) == ids


def test_a_special_token_that_is_only_spelled_out_is_plain_text() -> None:
    assert counter_for("gpt-5").count("<|endoftext|>") == 7


@pytest.mark.parametrize(
    ("model", "name", "provenance"),
    [
        ("gpt-5", "o200k_base", "counted"),
        ("openai/gpt-4o-mini", "o200k_base", "counted"),
        ("o3-mini", "o200k_base", "counted"),
        ("gpt-4-turbo", "cl100k_base", "counted"),
        ("claude-sonnet-4-5", "o200k_base × 1.2", "estimated"),
        ("anthropic.claude-3-haiku", "o200k_base × 1.2", "estimated"),
        ("deepseek-chat", "deepseek_v3", "counted"),
        ("qwen3-coder", "qwen3", "counted"),
        ("gemini-2.5-pro", "gemma3", "estimated"),
        ("llama-3.3-70b", "llama3", "counted"),
        ("mistral-large-latest", "mistral_v3", "counted"),
        ("glm-4.6", "glm4", "counted"),
        ("kimi-k2", "kimi_k2", "counted"),
        ("acme-9000", "o200k_base by digits and symbols", "estimated"),
        (None, "o200k_base by digits and symbols", "estimated"),
    ],
)
def test_a_model_is_counted_with_its_familys_vocabulary(model: str | None, name: str, provenance: str) -> None:
    counter = counter_for(model)

    assert (counter.name, counter.provenance) == (name, provenance)
    assert counter.count("hello world") >= 2


def test_a_factor_is_applied_and_rounded_up() -> None:
    text = "one two three four five six seven"

    assert counter_for("gpt-5").count(text) == 7
    assert counter_for("claude-opus-4-5").count(text) == 9


def test_a_very_long_text_is_counted_in_pieces() -> None:
    text = KINDS["prose"] * (2 * CHUNK_CHARS // len(KINDS["prose"]) + 10)
    counter = counter_for("gpt-5")

    exact = counter.count(KINDS["prose"].strip()) * (len(text) / len(KINDS["prose"]))

    assert counter.count(text) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_is_close_for_every_kind_of_text(kind: str) -> None:
    text = KINDS[kind] * 20

    ratio = EstimatingCounter().count(text) / counter_for("gpt-5").count(text)

    # Names and nothing else come out high: in base64, which looks like them, each change of case costs a token.
    assert 0.85 <= ratio <= (1.8 if kind == "camel" else 1.35)


def test_without_the_tokenizer_there_is_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_splintr(name: str, *rest: Any, **more: Any) -> Any:
        if name == "splintr":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_splintr)
    tokenizer.cache_clear()
    counter_for.cache_clear()
    vocabularies._family_counter.cache_clear()
    try:
        assert counter_for("gpt-5").name == "estimate"
    finally:
        tokenizer.cache_clear()
        counter_for.cache_clear()
        vocabularies._family_counter.cache_clear()


def test_the_table_knows_windows_answers_and_prices() -> None:
    assert find_model("gpt-5") == ModelInfo("gpt-5", 272_000, 128_000, 1.25, 10.0, 0.125)
    assert find_model("claude-sonnet-4-5") == ModelInfo("claude-sonnet-4-5", 200_000, 64_000, 3.0, 15.0, 0.3, 3.75)


@pytest.mark.parametrize("name", ["openai/gpt-5", "openai:gpt-5", "GPT-5", "gpt-5-2099-01-01", "router/openai/gpt-5"])
def test_a_model_is_found_by_other_spellings(name: str) -> None:
    found = find_model(name)

    assert found is not None
    assert found.max_input_tokens == 272_000


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("mistral-large-latest", "mistral/mistral-large-latest"),
        ("mistral:mistral-large-latest", "mistral/mistral-large-latest"),
        ("moonshotai:kimi-k2.6", "moonshot/kimi-k2.6"),
        ("cerebras:qwen-3-32b", "cerebras/qwen-3-32b"),
        ("groq:openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),
    ],
)
def test_a_model_has_the_window_of_the_provider_that_is_named_or_else_of_its_maker(name: str, row: str) -> None:
    assert find_model(name) == find_model(row)


def test_behind_a_router_that_the_table_does_not_know_the_smallest_window_of_a_model_is_assumed() -> None:
    anywhere = [name for name in known_models() if name.endswith("/kimi-k2.6")]
    windows = [found.max_input_tokens for name in anywhere if (found := find_model(name))]

    found = find_model("some-router/moonshotai/kimi-k2.6")

    assert len(windows) > 1
    assert found is not None
    assert found.max_input_tokens == min(windows)


def test_the_name_of_an_unknown_model_neither_begins_a_line_of_a_log_nor_fills_it() -> None:
    rest = "is not in the table of models; a window of 128,000 tokens is assumed"

    assert describe_unknown_model("x\nERROR: all is lost") == f"'x\\nERROR: all is lost' {rest}"
    assert describe_unknown_model("many words " * 99_999) == f"{'many words ' * 18}ma… {rest}"


def test_an_unknown_model_is_not_guessed() -> None:
    assert find_model("acme-9000") is None
    assert find_model(None) is None
    assert budget_for("acme-9000") == Budget(96_000, source="default")


def test_a_budget_for_a_model() -> None:
    assert budget_for("claude-sonnet-4-5") == Budget(150_000, source="table")
    assert budget_for("claude-sonnet-4-5", 16_000) == Budget(16_000, source="user")
    assert budget_for("claude-sonnet-4-5", provider_window=100_000) == Budget(75_000, source="provider")


def test_family_of_an_empty_name_is_unknown() -> None:
    assert model_family("") == model_family(None)


def test_a_warning_about_a_model_name_with_half_a_character_can_be_written(caplog: pytest.LogCaptureFixture) -> None:
    budget_for("no-such-\ud800-model")

    (warning,) = caplog.messages
    assert warning.encode().startswith("no-such-\ufffd-model".encode())


@given(st.text(st.sampled_from("0123456789٣x é"), max_size=30))
def test_a_group_of_up_to_three_digits_is_a_token_of_its_vocabulary_and_here_one_for_each_digit(text: str) -> None:
    groups = re.findall("[0-9]{1,3}", text)

    ordinary, by_digits = (counter_for(model).count(text) for model in ("gpt-5", "a-model-that-nobody-knows"))

    assert by_digits - ordinary == sum(map(len, groups)) - len(groups)


@pytest.mark.parametrize(
    "text",
    [
        f"     {'━' * 40} 10.2/10.2 MB 5.1 MB/s eta 0:00:00\n",
        f"{'═' * 60}\n Results\n{'═' * 60}\n",
        f"100%|{'█' * 30}| 312/312 [00:10<00:00, 30.2it/s]\n",
        "😀 🚀 🎉 🔥 👍 ready\n",
    ],
)
def test_bars_and_emoji_have_no_more_tokens_in_a_bundled_vocabulary_than_an_unknown_model_counts(text: str) -> None:
    unknown = counter_for("a-model-that-nobody-knows").count(text)
    known = [counter_for(name).count(text) for name in ("gpt-4", "mistral-large", "llama-3", "qwen3", "deepseek-chat")]

    assert max(known) <= unknown <= 2.5 * max(known)


def test_every_digit_counts_for_a_model_whose_vocabulary_is_unknown() -> None:
    line = "2026-07-01T12:15:58.4969236Z"

    assert counter_for("gpt-5").count("20260701") == 3
    assert counter_for("a-model-that-nobody-knows").count("20260701") == 8
    assert counter_for("a-model-that-nobody-knows").count(line) >= sum(map(str.isdigit, line))


@pytest.mark.parametrize("model", ["gpt-5", "claude-sonnet-4-5", "unknown", "llama-2-7b", "qwen3-8b", "gemma-3-4b"])
@given(
    text=st.text()
    | st.text("0123456789٣")
    | st.text("\u0958\u0959\u2126\ufb2c\U0001d15e")
    | st.text("ab \n", max_size=2_000)
)
def test_no_text_has_more_tokens_than_the_bound_of_its_vocabulary(model: str, text: str) -> None:
    counter = counter_for(model)
    bound = bound_of(counter)

    assert bound is not None
    assert counter.count(text) <= bound.count(text)
    assert (bound.name, bound.provenance) == (counter.name, counter.provenance)


def test_a_vocabulary_is_loaded_when_something_is_counted() -> None:
    program = (
        "from holdfast import govern\n"
        "from holdfast.counters.vocabularies import tokenizer\n"
        "request = govern([{'role': 'user', 'content': 'Bonjour à tous'}], budget=1_000, model='gpt-5')\n"
        "before = tokenizer.cache_info().currsize\n"
        "print(before, request.tokens.conversation, request.tokens.total, tokenizer.cache_info().currsize)"
    )

    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["0", "10", "10", "1"]


def test_a_text_that_was_just_counted_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = vocabularies.VocabularyCounter(model_family("gpt-5"))
    texts = [f"{number} {'words of a summary ' * 20}" for number in range(vocabularies.RECENT_TEXT_COUNT + 1)]
    tokenized: list[str] = []
    size = counter._size

    def noted(text: str) -> int:
        tokenized.append(text)
        return size(text)

    monkeypatch.setitem(vars(counter), "_size", noted)

    first = [counter.count(text) for text in texts]
    again = [counter.count(text) for text in texts[:0:-1]]

    assert again == first[:0:-1]
    assert tokenized == texts
    assert counter.count(texts[0]) == first[0]  # the oldest is forgotten, and counted anew
    assert tokenized == [*texts, texts[0]]
    assert not any(isinstance(one, str) for one in counter._recent)


@pytest.mark.parametrize("model", ["gpt-5", "claude-sonnet-4-5", "llama-2", "unknown"])
@pytest.mark.parametrize("extra", ["", "a word", "café " * 20, "<|endoftext|> is no token here" * 3, "x" * 20_000])
def test_texts_counted_together_count_as_each_alone(model: str, extra: str) -> None:
    texts = [f"2026-03-{number:02} worker GET /api/v2/{number**20:x} {extra}" for number in range(9)]
    counter, alone = (vocabularies.VocabularyCounter(model_family(model)) for _ in range(2))

    assert counter.count_texts([*texts, extra]) == [alone.count(text) for text in (*texts, extra)]
    assert counter.count_texts(texts) == [alone.count(text) for text in texts]
    assert counter.count_texts([]) == []


@pytest.mark.parametrize("name", ["gpt-5-minni", "openai:gpt-5-minni", "openrouter/openai/gpt-5-minni:free"])
def test_the_known_model_that_is_most_like_a_name_is_found_behind_its_provider(name: str) -> None:
    assert nearest_model(name) == "gpt-5-mini"
