"""Generated conversations whose facts are known, as a judge that nothing was tuned on.

Each conversation is drawn from a seed: facts, facts that change later, contradictions, rules stated once, plans that
are overridden twice, names that differ by a digit, statements in several languages, and ids in tool outputs of many
shapes, between long stretches of other talk and work. A question asks for one of them, and counts if its answer, the
newest where there were several, is verbatim in the request or in one recall whose query is the question.
"""

import json
import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks.memory.figures import Figures, add_pair
from holdfast import Session
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    tool_call_message,
    tool_result_message,
    user_message,
)

GENERATED_BUDGET, GENERATED_ANSWER_TOKENS = 8_000, 1_000
FACTS_OF_EACH_KIND, FILLERS = 6, 260
SUBJECTS = (
    "harbour", "boiler", "archive", "kiln", "orchard", "viaduct", "cannery", "foundry", "glasshouse", "ferry", "quarry",
    "observatory", "brewery", "lighthouse", "tannery", "aqueduct", "sawmill", "granary", "chapel", "dockyard",
)  # fmt: skip
PEOPLE = ("Ida", "Bruno", "Chen", "Dalia", "Emeka", "Farah", "Goran", "Hana", "Ivo", "Juno", "Kofi", "Lena")
TALK = (
    "Can you explain how a {0} is usually inspected, and what {1} people tend to overlook?",
    "I was reading about the history of the {0}. What would you say mattered most?",
    "Give me {1} ideas for a short text about the {0}.",
)
REPLY = (
    "There are several things to keep in mind about a {0}. First, look at the parts that wear out. Second, ask who "
    "looks after it and how often. Third, compare it with others of its kind and age. It also helps to write down what "
    "you see at each visit, so that changes over the years become visible, and to agree on who decides what is urgent."
)
Question: TypeAlias = tuple[str, str, str]
"""Its kind, its text, and the answer that must be found."""


@dataclass(slots=True)
class Draft:
    """A conversation in the making: statements to place, in order of time, and questions about them."""

    chance: random.Random
    statements: list[tuple[float, list[JsonMessage]]] = field(default_factory=list[tuple[float, list[JsonMessage]]])
    questions: list[Question] = field(default_factory=list[Question])
    _calls: int = 0

    def say(self, text: str, start: float = 0.0, stop: float = 0.6) -> float:
        """Let the user say something at a random time; return the time."""
        time = self.chance.uniform(start, stop)
        self.statements.append((time, [user_message(text), assistant_message("Noted.")]))
        return time

    def print_output(self, command: str, output: str) -> None:
        """Let a tool print something at a random time."""
        self._calls += 1
        call_id = f"call_{self._calls}"
        messages: list[JsonMessage] = [
            user_message(f"Run {command}."),
            tool_call_message(call_id, name="shell", arguments={"command": command}),
            tool_result_message(call_id, output),
            assistant_message("It ran."),
        ]
        self.statements.append((self.chance.uniform(0.0, 0.6), messages))

    def number(self, digits: int = 5) -> str:
        """Return a random number."""
        return str(self.chance.randrange(10 ** (digits - 1), 10**digits))

    def code(self) -> str:
        """Return a random code, such as `KLM-4711`."""
        letters = "".join(self.chance.choices(string.ascii_uppercase, k=3))
        return f"{letters}-{self.number(4)}"


def add_facts(draft: Draft, subject: str, person: str) -> None:
    code = draft.code()
    draft.say(f"By the way, {person} keeps the key of the {subject} under the number {code}.")
    draft.questions.append(("fact", f"Under which number does {person} keep the key of the {subject}?", code))


def add_update(draft: Draft, subject: str, person: str) -> None:
    old, new = draft.code(), draft.code()
    time = draft.say(f"The permit of the {subject} that {person} asked for is {old}.", 0.0, 0.3)
    draft.say(f"The permit of the {subject} was renewed: it is {new} now.", time, 0.6)
    draft.questions.append(("update", f"What is the permit of the {subject} now?", new))


def add_contradiction(draft: Draft, subject: str, person: str) -> None:
    said, denied = draft.code(), f"I have never paid the invoice of the {subject}."
    time = draft.say(f"I paid the invoice {said} of the {subject} together with {person}.", 0.0, 0.3)
    draft.say(denied, time, 0.6)
    draft.questions.append(("contradiction", f"Have I paid the invoice of the {subject}?", denied))


def add_rule(draft: Draft, subject: str, person: str) -> None:
    rule = f"Always mention {person} when I ask about the {subject}."
    draft.say(rule, 0.0, 0.3)
    draft.questions.append(("rule", f"What should we plan for the {subject}?", rule))


def add_plan(draft: Draft, subject: str, person: str) -> None:
    days = draft.chance.sample(range(1, 29), 3)
    time = draft.say(f"The plan: {person} visits the {subject} on {days[0]} March.", 0.0, 0.2)
    time = draft.say(f"Change of plan for the {subject}: the visit is on {days[1]} April instead.", time, 0.4)
    last = f"{days[2]} May"
    draft.say(f"The visit to the {subject} moved again, to {last}.", time, 0.6)
    draft.questions.append(("plan", f"When is the visit to the {subject}?", last))


def add_near_names(draft: Draft, subject: str, person: str) -> None:
    digits = draft.chance.sample(range(10), 3)
    codes = {digit: draft.code() for digit in digits}
    for digit, code in codes.items():
        draft.say(f"Pump {subject}_{digit} is checked by {person} under {code}.")
    wanted = draft.chance.choice(digits)
    draft.questions.append(("near name", f"Under which code is pump {subject}_{wanted} checked?", codes[wanted]))


def add_languages(draft: Draft, subject: str, person: str) -> None:
    code = draft.code()
    asked = draft.chance.choice(
        [
            ("{2} hat den Vertrag {0} für {1} unterschrieben.", "Welchen Vertrag hat {2} für {1} unterschrieben?"),
            ("{2} firmó el contrato {0} para {1}.", "¿Qué contrato firmó {2} para {1}?"),
            ("{2} a signé le contrat {0} pour {1}.", "Quel contrat {2} a-t-il signé pour {1} ?"),
            ("{2}为{1}签了合同{0}。", "{2}为{1}签了哪份合同？"),
        ]
    )
    draft.say(asked[0].format(code, subject, person))
    draft.questions.append(("language", asked[1].format(code, subject, person), code))


def add_output(draft: Draft, subject: str, person: str) -> None:
    ids = [draft.code() for _ in range(60)]
    wanted = draft.chance.randrange(len(ids))
    hosts = [f"{subject}-{index:02d}" for index in range(len(ids))]
    shapes: Sequence[Callable[[], str]] = (
        lambda: json.dumps([{"host": host, "ticket": one} for host, one in zip(hosts, ids, strict=True)], indent=1),
        lambda: "\n".join(f"{host:20} {one:12} ok" for host, one in zip(hosts, ids, strict=True)),
        lambda: "\n".join(f"2026-03-01 10:00:{i % 60:02d} INFO {h}: {ids[i]}" for i, h in enumerate(hosts)),
        lambda: "\n".join(f"| {host} | {one} | {person} |" for host, one in zip(hosts, ids, strict=True)),
        lambda: "".join(f"<row host='{host}'><id>{one}</id></row>" for host, one in zip(hosts, ids, strict=True)),
    )
    draft.print_output(f"list-tickets {subject}", draft.chance.choice(shapes)())
    draft.questions.append(("output", f"Which ticket did {hosts[wanted]} have in the list?", ids[wanted]))


KINDS = (
    add_facts, add_update, add_contradiction, add_rule, add_plan, add_near_names, add_languages, add_output,
)  # fmt: skip


def generate_conversation(seed: int) -> tuple[list[JsonMessage], list[Question]]:
    """Return the messages of a conversation and the questions about it; the same seed gives the same conversation."""
    draft = Draft(random.Random(seed))
    for add in KINDS:
        for subject in draft.chance.sample(SUBJECTS, FACTS_OF_EACH_KIND):
            add(draft, subject, draft.chance.choice(PEOPLE))
    for _ in range(FILLERS):
        subject = draft.chance.choice(SUBJECTS)
        asked = draft.chance.choice(TALK).format(subject, draft.number(1))
        draft.statements.append(
            (draft.chance.random(), [user_message(asked), assistant_message(REPLY.format(subject))])
        )
    ordered = sorted(draft.statements, key=lambda statement: statement[0])
    return [message for _, messages in ordered for message in messages], draft.questions


async def measure_generated(seed: int) -> Figures:
    """Return the figures of one generated conversation."""
    messages, asked = generate_conversation(seed)
    figures = Figures()
    room = GENERATED_BUDGET - GENERATED_ANSWER_TOKENS
    async with Session.open("generated", model="gpt-5") as session:
        for exchange in _exchanges(messages):
            await session.record(exchange)
            await session.prepare(room, has_recall=True)
        await session.record([user_message("?")])
        request = await session.prepare(room, has_recall=True)
        view = "\n".join(str(native.get("content") or "") for native in request.messages)
        tool = session.recall_tool(max_tokens=GENERATED_ANSWER_TOKENS)
        for kind, question, answer in asked:
            is_seen = answer in view
            is_reached = is_seen or answer in await tool.call({"query": question})
            for name in ("generated", kind):
                add_pair(figures, f"{name} in view", is_seen)
                add_pair(figures, name, is_reached)
    return figures


def _exchanges(messages: Sequence[JsonMessage]) -> Iterator[list[JsonMessage]]:
    """Yield each message of the user with what follows it."""
    exchange: list[JsonMessage] = []
    for message in messages:
        if message["role"] == "user" and exchange:
            yield exchange
            exchange = []
        exchange.append(message)
    yield exchange
