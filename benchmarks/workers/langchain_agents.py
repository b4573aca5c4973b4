"""LangChain: trim_messages, its SummarizationMiddleware, and LangGraph's SqliteSaver."""

import json
from functools import cache
from itertools import chain
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware, wrap_model_call
from langchain_chat import Recording, RecordingWay, agent_model, summary_model, tool_of
from langchain_core.messages import AnyMessage, BaseMessage, convert_to_messages
from langchain_core.messages.utils import count_tokens_approximately, trim_messages
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from serving import KEEP, SYSTEM, TRIGGER, Json, Loop, bytes_in, serve
from splintr import Tokenizer

CONFIG: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": 1_000_000}


@cache
def exact_counter() -> Any:
    """Return a counter over o200k: content, calls and four tokens a message."""
    encode = Tokenizer.from_pretrained("o200k_base").encode_ordinary
    encode("loads the vocabulary")

    def count(messages: list[BaseMessage]) -> int:
        total = 3
        for message in messages:
            total += 4 + len(encode(str(message.content)))
            total += sum(8 + len(encode(json.dumps(call["args"]))) for call in getattr(message, "tool_calls", ()))
        return total

    return count


def trimmed(messages: list[BaseMessage], budget: int, counter: Any) -> list[BaseMessage]:
    return trim_messages(
        messages, max_tokens=budget, strategy="last", token_counter=counter, start_on="human", include_system=True
    )


class Trimming(RecordingWay):
    """trim_messages as its documentation shows it."""

    has_state = False

    def __init__(self, budget: int, counter: Any) -> None:
        super().__init__()
        self.shown = None
        self._budget, self._counter = budget, counter

    def prepare(self) -> None:
        self.request = trimmed(self.messages, self._budget, self._counter)


class Summarising(RecordingWay):
    """SummarizationMiddleware: its output replaces the list."""

    def __init__(self, budget: int, **settings: Any) -> None:
        super().__init__()
        trigger, keep = ("tokens", int(budget * TRIGGER)), ("tokens", int(budget * KEEP))
        model = Recording(shown=self.shown)
        self._middleware = SummarizationMiddleware(model, trigger=trigger, keep=keep, **settings)

    def prepare(self) -> None:
        # An agent keeps its system prompt apart from the list that the middleware sees.
        system, rest = self.messages[:1], self.messages[1:]
        update = self._middleware.before_model({"messages": rest}, None)
        if update:
            self.messages = [*system, *update["messages"][1:]]
        self.request = list(self.messages)


def ran(loop: Loop, *middleware: Any) -> str:
    agent = create_agent(agent_model(loop), [tool_of(loop)], system_prompt=SYSTEM, middleware=middleware)
    state = agent.invoke({"messages": [("user", loop.prompt)]}, CONFIG)
    return state["messages"][-1].text


def run_trimming(loop: Loop, counter: Any) -> str:
    @wrap_model_call
    def trim(request: Any, handler: Any) -> Any:
        return handler(request.override(messages=trimmed(request.messages, loop.trigger, counter)))

    return ran(loop, trim)


def run_summarising(loop: Loop) -> str:
    sizes: Any = {"trigger": ("tokens", loop.trigger), "keep": ("tokens", loop.keep)}
    return ran(loop, SummarizationMiddleware(summary_model(loop), **sizes))


def joined(messages: list[AnyMessage], additions: list[list[AnyMessage]]) -> list[AnyMessage]:
    return [*messages, *chain.from_iterable(additions)]


class DeltaState(TypedDict):
    """Messages of which a checkpoint stores the additions, and sometimes all of them."""

    messages: Annotated[list[AnyMessage], DeltaChannel(joined)]


def graph_of(state: Any, steps: list[list[BaseMessage]]) -> Any:
    """Return a graph whose one node adds the messages of the next step, as long as there are any."""
    rest = iter(steps)
    left = len(steps)

    def step(_: Any) -> dict[str, list[BaseMessage]]:
        nonlocal left
        left -= 1
        return {"messages": next(rest)}

    graph = StateGraph(state)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda _: "step" if left else END, ["step", END])
    return graph


def kept(state: Any, steps: list[list[Json]], folder: str) -> Json:
    """Run the graph with its state in a file, a checkpoint a step."""
    file = f"{folder}/checkpoints.db"
    first, *others = [convert_to_messages(step) for step in steps]
    with SqliteSaver.from_conn_string(file) as saver:
        graph_of(state, others).compile(checkpointer=saver).invoke({"messages": first}, CONFIG, durability="sync")
    size = bytes_in(folder)
    with SqliteSaver.from_conn_string(file) as saver:
        state_now = graph_of(state, others).compile(checkpointer=saver).get_state(CONFIG)
    return {"bytes": size, "messages": len(state_now.values["messages"])}


serve(
    ways={
        "trim_messages": lambda budget: Trimming(budget, count_tokens_approximately),
        "trim_messages, exact counter": lambda budget: Trimming(budget, exact_counter()),
        "LangChain SummarizationMiddleware": Summarising,
        "the same, trim_tokens_to_summarize=None": lambda budget: Summarising(budget, trim_tokens_to_summarize=None),
    },
    runs={
        "trim_messages": lambda loop: run_trimming(loop, count_tokens_approximately),
        "trim_messages, exact counter": lambda loop: run_trimming(loop, exact_counter()),
        "LangChain SummarizationMiddleware": run_summarising,
    },
    keeps={
        "LangGraph SqliteSaver": lambda steps, folder: kept(MessagesState, steps, folder),
        "LangGraph SqliteSaver, DeltaChannel (beta)": lambda steps, folder: kept(DeltaState, steps, folder),
    },
)
