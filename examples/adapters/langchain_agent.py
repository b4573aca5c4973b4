"""A LangChain agent without a length limit: every model call fits, and the graph's state stays whole.

The model here is a script, so that this runs anywhere; use a real one instead, such as
`init_chat_model("openai:gpt-5-mini")`. Needs the extra `langchain`.
"""

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.adapters.langchain import HoldfastMiddleware


class Reader(BaseChatModel):
    """Reads a file for every question, then answers."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - as in LangChain
        """Return itself: the script knows its tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: object, **__: object) -> ChatResult:
        call: Any = {"name": "read", "args": {"path": "totals.py"}, "id": f"call_{len(messages)}_{id(messages)}"}
        is_read = isinstance(messages[-1], ToolMessage)
        answer = AIMessage("It adds the prices.") if is_read else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def read(path: str) -> str:
    """Read a file."""
    return f"{path}\n" + "".join(f"{number:03} total = total + price\n" for number in range(40))


def main() -> None:
    """Ask until there are a few compactions, and show what they did."""
    holdfast = HoldfastMiddleware(store="memory://", budget=5_000)
    agent = create_agent(Reader(), [read], middleware=[holdfast], checkpointer=InMemorySaver())
    for number in range(16):
        asked: Any = {"messages": [HumanMessage(f"Question {number}: what does line {number} do?")]}
        state = agent.invoke(asked, {"configurable": {"thread_id": "totals"}})
        request = holdfast.last_request("totals")
        print(f"{len(state['messages']):2} messages so far, sent {request.tokens if request else '-'}")
    for receipt in holdfast.session("totals").receipts():
        print(f"\n{receipt}")
    holdfast.close()


if __name__ == "__main__":
    main()
