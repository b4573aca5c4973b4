"""The command that asks a real model compares what each way of keeping a chat is worth to it."""

import json
from typing import Any

import pytest

from benchmarks.memory.ask_model import ask_all, figures_of, main, paired_interval, token_f1
from holdfast.testing.endpoint import ReceivedRequest, ResponsePiece, ScriptedEndpoint, http_response

QUESTIONS = [
    {"kind": "q", "chat": "c", "q": "When?", "a": "7 May 2023", "cat": 2, "oracle": "On 2023-05-07.", "bm25": "",
     "recalls": {"default": "On 2023-05-07."}, "evidence": ["default", "oracle"]},
    {"kind": "q", "chat": "c", "q": "Who?", "a": "Gina", "cat": 4, "oracle": "Gina", "bm25": "Gina",
     "recalls": {"default": "Gina"}, "evidence": ["default", "oracle", "bm25"]},
]  # fmt: skip


def test_dates_and_fillers_do_not_hide_an_equal_answer() -> None:
    assert token_f1("The 2023-05-07.\nBecause it was said", "7 May 2023") == 1.0
    assert token_f1("Jon", "Gina and Jon") == pytest.approx(2 / 3)
    assert token_f1("", "Gina") == 0.0


def test_an_arm_that_is_always_better_has_an_interval_above_zero() -> None:
    assert paired_interval([[0.5, 0.5]] * 20) == (0.5, 0.5, 0.5)


def test_conversations_are_drawn_whole_so_that_many_questions_about_two_of_them_prove_little() -> None:
    mean, low, high = paired_interval([[1.0] * 300, [-1.0] * 100])

    assert (mean, low, high) == (0.5, -1.0, 1.0)


async def test_each_arm_is_asked_with_its_own_context_and_compared_with_the_baseline() -> None:
    def reply(request: ReceivedRequest) -> list[ResponsePiece]:
        messages: Any = request.body["messages"]
        prompt = str(messages[1]["content"])
        context = prompt.partition("\n\nAnswer the question")[0]
        said = "7 May 2023" if "2023-05-07" in context else "Gina" if "Gina" in context else "no idea"
        return http_response(200, {"choices": [{"message": {"role": "assistant", "content": said}}]})

    contexts = {"default": "", "tail7": "", "tail": "nothing"}
    lines = [{"kind": "ctx", "chat": "c", "ctx": contexts}, *QUESTIONS]
    prompts = "".join(json.dumps(line) + "\n" for line in lines)

    async with ScriptedEndpoint(reply) as server:
        answers = await ask_all(prompts, f"{server.url}#m", ["default", "bm25", "tail", "default alone"], at_once=2)

    figures = figures_of(answers)
    assert {arm: found["f1"] for arm, found in figures.items()} == {
        "default": 1.0, "bm25": 0.5, "tail": 0.0, "default alone": 0.0,
    }  # fmt: skip
    assert {arm: found["evidence"] for arm, found in figures.items()} == {
        "default": 1.0, "bm25": 0.5, "tail": 0.0, "default alone": 0.0,
    }  # fmt: skip
    assert (figures["default"]["f1_over_baseline"], figures["default"]["evidence_over_baseline"]) == (0.5, 0.5)
    assert figures_of(answers, "tail")["default"]["f1_over_baseline"] == 1.0
    assert [answer["answer"] for answer in answers if answer["arm"] == "bm25"] == ["no idea", "Gina"]
    assert {request.body["model"] for request in server.requests} == {"m"}


def test_a_baseline_that_is_not_asked_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prompts.jsonl", "--model", "http://127.0.0.1:9/v1#m", "--arms", "default,tail"])

    assert "--baseline bm25 is not one of the arms default,tail; add it with --arms" in capsys.readouterr().err
