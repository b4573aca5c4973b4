"""LangGraph's SqliteSaver; run inside an environment that has langgraph and langgraph-checkpoint-sqlite."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, BaseMessage, convert_to_messages
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

CONFIG: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": 1_000_000}


def joined(messages: list[AnyMessage], additions: list[list[AnyMessage]]) -> list[AnyMessage]:
    return [*messages, *chain.from_iterable(additions)]


class DeltaState(TypedDict):
    """Messages of which a checkpoint keeps what was added, and all of them now and then."""

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


def kept(name: str, state: Any, steps: list[list[BaseMessage]], folder: Path) -> dict[str, Any]:
    """Run the graph with its state in a file, and return how large that is and how many messages come back."""
    folder.mkdir()
    file = str(folder / "checkpoints.db")
    first, *others = steps
    with SqliteSaver.from_conn_string(file) as saver:
        graph_of(state, others).compile(checkpointer=saver).invoke({"messages": first}, CONFIG, durability="sync")
    size = sum(path.stat().st_size for path in folder.iterdir())
    with SqliteSaver.from_conn_string(file) as saver:
        state_now = graph_of(state, others).compile(checkpointer=saver).get_state(CONFIG)
        checkpoints = sum(1 for _ in saver.list(CONFIG))
    return {"name": name, "bytes": size, "messages": len(state_now.values["messages"]), "checkpoints": checkpoints}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(task["folder"])
    states = {"langgraph SqliteSaver": MessagesState, "langgraph SqliteSaver, DeltaChannel (beta)": DeltaState}
    answers: list[dict[str, Any]] = []
    for number, (name, state) in enumerate(states.items()):
        steps = [convert_to_messages(step) for step in task["steps"]]
        answers.append(kept(name, state, steps, folder / f"langgraph{number}"))
    print(json.dumps(answers))


main()
