"""Each figure on a conversation whose answer can be worked out by hand."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import pytest

from holdfast.apps.lab.baselines import ReplayRequest, ReplayResult, SummaryCost
from holdfast.apps.lab.identifiers import extract_orders, extract_rules, name_pieces
from holdfast.apps.lab.metrics.overhead import EngineOverhead, Losslessness, RequestStalls, SummaryUse
from holdfast.apps.lab.metrics.retention import (
    DemandRetention,
    EvidenceRetention,
    InstructionRetention,
    OwnCompactions,
    with_final_question,
)
from holdfast.apps.lab.metrics.validity import BudgetAdherence, RequestValidity
from holdfast.apps.lab.mistral import MISTRAL_PACKAGE, mistral_oracle, tekken_counter
from holdfast.apps.lab.recordings import Probe, RecordedCompaction, Recording, read_recording
from holdfast.apps.lab.replay import Replayer
from holdfast.apps.lab.runner import UNLISTED_MODEL
from holdfast.apps.lab.simulation import SimulatedSession
from holdfast.core.planning.policy import PRESETS
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session

needs_mistral_common = pytest.mark.skipif(find_spec(MISTRAL_PACKAGE) is None, reason="mistral-common is not installed")


def recorded(messages: list[JsonMessage], probes: Sequence[Probe] = ()) -> Recording:
    nothing: list[Any] = [None] * len(messages)
    return Recording("test", messages, nothing, nothing, tuple(probes))


@dataclass(slots=True)
class Only:
    """Sends the newest messages, and nothing else."""

    count: int

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        return ReplayResult(replay_request.messages[-self.count :])


@dataclass(slots=True)
class OnlyText:
    """Sends one text, whatever was said."""

    text: str

    async def prepare(self, replay_request: ReplayRequest) -> ReplayResult:
        del replay_request
        return ReplayResult([user_message(self.text)])


async def asked_of(
    talk: Recording, policy: Any, *metrics: Any, budget: int = 10**6, static: int = 0
) -> dict[str, float]:
    return await Replayer(talk, policy, budget, static).play(metrics)


def working(paths: Sequence[str]) -> list[JsonMessage]:
    """Read files one after the other, each with an exchange between."""
    talk: list[JsonMessage] = [user_message("go")]
    for number, path in enumerate(paths):
        call: JsonMessage = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "read", "arguments": f'{{"path": "{path}"}}'},
        }
        asking: JsonMessage = {"role": "assistant", "content": None, "tool_calls": [call]}
        talk += [
            asking,
            tool_result_message(f"c{number}", f"read {path}"),
            assistant_message("done"),
            user_message("next"),
        ]
    return talk


async def test_m1_counts_identifiers_that_are_needed_again_after_twenty_messages() -> None:
    paths = ["src/first.py", *(f"src/file{number}.py" for number in range(9)), "src/first.py", "src/file8.py"]

    seen_all = await asked_of(recorded(working(paths)), Only(10**6), DemandRetention())
    seen_few = await asked_of(recorded(working(paths)), Only(6), DemandRetention())

    assert (seen_all["M1.demands"], seen_all["M1.far"], seen_all["M1.first"]) == (1, 1.0, 1.0)
    assert (seen_few["M1.demands"], seen_few["M1.far"]) == (1, 0.0)
    assert seen_few["M1.by_age.20"] == 0.0
    assert "M1.far_recall" not in seen_few


async def test_m1_counts_what_one_recall_brings_back() -> None:
    paths = ["src/first.py", *(f"src/file{number}.py" for number in range(9)), "src/first.py"]

    async def recall(query: str) -> str:
        return "it was src/first.py" if query == "next" else ""

    figures = await asked_of(recorded(working(paths)), Only(6), DemandRetention(recall))

    assert (figures["M1.far"], figures["M1.far_recall"]) == (0.0, 1.0)


async def test_m2_and_m3_ask_for_all_evidence_and_for_the_answer() -> None:
    talk = [
        user_message("I live in Oslo."),
        assistant_message("Noted."),
        user_message("My cat is called Miso."),
        assistant_message("Noted."),
    ]
    probes = [
        Probe("Where do I live?", "Oslo", (0,)),
        Probe("What is the cat called?", "Miso", (2,)),
        Probe("Where does Miso live?", "in Oslo with you", (0, 2)),
    ]

    figures = await asked_of(with_final_question(recorded(talk, probes)), Only(3), EvidenceRetention())

    assert figures["M2.questions"] == pytest.approx(1 / 3)
    assert figures["M2.hard"] == 0.0
    assert figures["M2.turns"] == pytest.approx(2 / 4)
    assert figures["M3.answers"] == pytest.approx(1 / 2), "the third answer stands nowhere to the letter"


async def test_m2_with_a_recall_whose_query_is_the_question() -> None:
    talk = [
        user_message("I live in Oslo."),
        assistant_message("Noted."),
        user_message("My cat is called Miso."),
        assistant_message("Noted."),
    ]
    asked: list[str] = []

    async def recall(query: str) -> str:
        asked.append(query)
        return "I live in Oslo."

    figures = await asked_of(
        with_final_question(recorded(talk, [Probe("Where do I live?", "Oslo", (0,))])),
        Only(2),
        EvidenceRetention(recall),
    )

    assert (figures["M2.questions_recall"], figures["M3.answers_recall"], asked) == (1.0, 1.0, ["Where do I live?"])


@needs_mistral_common
async def test_m8_counts_requests_that_a_provider_would_refuse() -> None:
    talk = recorded([user_message("a"), tool_call_message("x"), tool_result_message("x", "r"), assistant_message("b")])

    whole = await asked_of(talk, Only(10), RequestValidity(oracle=mistral_oracle()))
    torn = await asked_of(talk, Only(1), RequestValidity(oracle=mistral_oracle()))

    assert (whole["M8.invalid"], whole["M8.elsewhere"], whole["M8.mistral"]) == (0, 0, 0)
    assert torn["M8.invalid"] == 1, "a result without its call"


async def test_m9_counts_requests_over_budget_as_somebody_else_counts() -> None:
    talk = recorded([user_message("word " * 85), assistant_message("b")])

    ours = await asked_of(talk, Only(1), BudgetAdherence(), budget=200, static=100)
    theirs = await asked_of(talk, Only(1), BudgetAdherence("over_claude", 1.21, 100), budget=200, static=100)

    assert (ours["M9.over"], theirs["M9.over_claude"]) == (0, 1)
    assert theirs["M9.over_claude_most"] == pytest.approx((100 + (ours["M9.over_most"] * 200 - 100) * 1.21) / 200)


@needs_mistral_common
def test_m9_has_a_second_vocabulary() -> None:
    counter = tekken_counter()

    assert counter is not None
    assert 3 <= counter.count("The tide turns at four.") <= 9


def foreign_outputs() -> list[str]:
    """Return outputs of shapes on which vocabularies differ, each of some 3,000 tokens."""
    chance = random.Random(20261117)

    def some(alphabet: Sequence[str], count: int) -> str:
        return "".join(chance.choices(alphabet, k=count))

    def digits(count: int) -> str:
        return some("0123456789", count)

    def hexes(count: int) -> str:
        return some("0123456789abcdef", count)

    lines: list[Callable[[], str]] = [
        lambda: f"2026-11-{digits(2)}T{digits(2)}:{digits(2)}.{digits(6)}Z pid={digits(5)} 0x{hexes(12)} retry",
        lambda: ",".join(digits(chance.randint(1, 9)) for _ in range(8)),
        lambda: f"{hexes(40)} refs/heads/{hexes(8)}",
        lambda: json.dumps({"id": digits(8), "at": [int(digits(3)), None], "name": hexes(6)}),
        lambda: f"\t\t    if (x{digits(2)} != nullptr && y_{hexes(3)}->size() >= {digits(4)}U) {{ return; }}",
        lambda: some("船在港口等待潮水第四個鐘頭以後才能離開", 40),
        lambda: some(["прилив ", "начинается ", "после ", "четырёх ", "часов ", "утра "], 12),
        lambda: f"{'─' * 30}┼{'═' * 30} ✓ {'░' * 30} {'.' * chance.randint(20, 60)}",
    ]
    return ["\n".join(line() for _ in range(80)) for line in lines]


@needs_mistral_common
async def test_m9_no_request_for_an_unknown_model_exceeds_its_budget_by_a_foreign_vocabulary() -> None:
    outputs, messages = foreign_outputs(), [system_message("Be brief."), user_message("Read all reports.")]
    for step in range(48):
        messages.append(tool_call_message(f"c{step}", arguments={"path": f"reports/{step}.txt"}))
        messages.append(tool_result_message(f"c{step}", f"{step}\n{outputs[step % len(outputs)]}"))
    messages.append(assistant_message("All read."))
    counter, adherence = tekken_counter(), BudgetAdherence("over_tekken")
    assert counter is not None

    async with SimulatedSession(PRESETS["default"], model=UNLISTED_MODEL) as ours:
        found = await Replayer(recorded(messages), ours, 50_000, counter=counter).play([adherence])

    assert found["M9.over_tekken"] == 0
    assert 0.85 < found["M9.over_tekken_most"] <= 1, "the session fills the budget, so that the margin decides"


async def test_m13_counts_instructions_that_stand_to_the_letter() -> None:
    talk = recorded(
        [system_message("Be brief."), user_message("Count ships."), assistant_message("one"),
         user_message("Never round. Fine?"), assistant_message("two"),
         user_message("Go on."), assistant_message("three")]
    )  # fmt: skip

    everything = await asked_of(talk, Only(10), InstructionRetention())
    newest = await asked_of(talk, Only(1), InstructionRetention())

    shares = ("system", "rules", "verbatim", "orders", "users", "short")
    assert everything == {"turns": 3, **{f"M13.{name}": 1.0 for name in shares}}
    # Of 2, 4 and 4 instructions the newest message says 1, 2 and 1; of 1, 2 and 3 prompts it is 1 each time.
    assert newest == {
        "turns": 3, "M13.system": pytest.approx(3 / 8), "M13.rules": pytest.approx(1 / 2),
        "M13.verbatim": pytest.approx(4 / 10), "M13.users": pytest.approx(3 / 6),
        "M13.orders": pytest.approx(1 / 2), "M13.short": pytest.approx(3 / 6),
    }  # fmt: skip


def test_a_rule_is_a_sentence_that_says_what_is_always_or_never_done() -> None:
    text = "Use tabs. Never touch a.lock! I don't know. Do you always win? Please don't read it all.\nIt must be fast"

    assert list(extract_rules(text)) == ["Never touch a.lock!", "Please don't read it all.", "It must be fast"]


def test_an_order_begins_with_always_or_never() -> None:
    text = "Always run the tests. Please never push. It must be fast. We never win."

    assert list(extract_orders(text)) == ["Always run the tests.", "Please never push."]


def test_the_pieces_of_a_name_are_its_words() -> None:
    assert name_pieces("src/loginView_v2.py") == ["src", "login", "View", "py"]
    assert name_pieces("4711") == ["4711"]


async def test_m13_counts_only_what_the_user_wrote_and_the_short_part_of_it() -> None:
    long = "word " * 100
    talk = read_recording(
        {
            "messages": [
                {"role": "user", "content": "Fix it."},
                assistant_message("Done."),
                {"role": "user", "content": "<environment/>", "x_meta": True},
                {"role": "user", "content": long},
                assistant_message("Done."),
            ]
        }
    )

    figures = await asked_of(talk, Only(1), InstructionRetention())

    assert (figures["M13.users"], figures["M13.short"]) == (pytest.approx(2 / 3), pytest.approx(1 / 2))


async def test_m1_tells_names_in_arguments_from_names_in_written_text() -> None:
    talk = working(["src/first.py", *(f"src/file{number}.py" for number in range(9))])
    arguments = '{"path": "src/first.py", "content": "see src/file0.py"}'
    call: JsonMessage = {"id": "w", "type": "function", "function": {"name": "write", "arguments": arguments}}
    talk.append({"role": "assistant", "content": None, "tool_calls": [call]})

    seen_path = await asked_of(recorded(talk), OnlyText("src/first.py"), DemandRetention())

    assert (seen_path["M1.used"], seen_path["M1.written"], seen_path["M1.demands"]) == (1.0, 0.0, 2)


async def test_m16_compares_our_view_with_an_agents_own_summary() -> None:
    talk = recorded(working(["src/kept.py", "src/lost.py", "src/new.py", "src/kept.py", "src/lost.py", "src/new.py"]))
    own = replace(talk, compactions=(RecordedCompaction(9, "They read src/lost.py."),))

    async def recall(query: str) -> str:
        return "src/lost.py" if query == "next" else ""

    figures = await asked_of(own, OnlyText("src/kept.py"), OwnCompactions(recall))

    # Only kept.py and lost.py were read before; new.py was read since.
    assert (figures["M16.summary"], figures["M16.view"], figures["M16.recall"]) == (0.5, 0.5, 1.0)


async def test_m4_m10_m11_and_m12_of_a_policy_that_waits_for_its_summaries() -> None:
    talk = recorded(generate_session(300))

    async with SimulatedSession(PRESETS["copilot"], summary_seconds=60.0) as played:
        metrics = [Losslessness(played, talk), RequestStalls(played), SummaryUse(played, talk), EngineOverhead(played)]
        figures = await asked_of(talk, played, *metrics, budget=12_000)

    assert figures["M4.lost"] == 0
    assert figures["M10.stalls"] > 0
    assert 0 < figures["M10.stall_ms_max"] <= 61_000
    assert figures["M11.calls"] > 0
    assert 0 < figures["M11.share"] < 1
    assert figures["M11.coverage"] > 0.99
    assert figures["M12.cpu_ms_p50"] > 0


async def test_m10_of_the_default_is_nothing_but_its_own_work() -> None:
    talk = recorded(generate_session(300))

    async with SimulatedSession(PRESETS["default"], summary_seconds=60.0) as played:
        figures = await asked_of(talk, played, RequestStalls(played), SummaryUse(played, talk), budget=12_000)

    assert figures["M10.stalls"] == 0
    assert figures["M11.calls"] > 0
    assert figures["M11.coverage"] > 0.99, "what came too late for its compaction was written all the same"


async def test_spend_on_summaries_is_told_with_the_request_it_was_for() -> None:
    talk = recorded(generate_session(300))

    async with SimulatedSession(PRESETS["copilot"], summary_seconds=0.0) as played:
        player = Replayer(talk, played, 12_000)
        await player.play()

    spent: list[SummaryCost] = [one for turn in player.turns for one in turn.summaries]
    assert played.summarizer is not None
    assert spent == played.summarizer.costs[: len(spent)]
    assert all(one.fresh_tokens > 0 and one.output_tokens > 0 for one in spent)
