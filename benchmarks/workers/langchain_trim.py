"""langchain_core.trim_messages; run inside an environment that has langchain-core and splintr-rs."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.messages.utils import count_tokens_approximately, trim_messages
from splintr import Tokenizer


def exact_counter() -> Any:
    """Return a counter over o200k: content, calls and four tokens a message."""
    encode = Tokenizer.from_pretrained("o200k_base").encode_ordinary

    def count(messages: list[BaseMessage]) -> int:
        total = 3
        for message in messages:
            total += 4 + len(encode(str(message.content)))
            total += sum(8 + len(encode(json.dumps(call["args"]))) for call in getattr(message, "tool_calls", ()))
        return total

    return count


def run(messages: list[BaseMessage], budget: int, counter: Any) -> list[BaseMessage]:
    return trim_messages(
        messages, max_tokens=budget, strategy="last", token_counter=counter, start_on="human", include_system=True
    )


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    counters = {"trim_messages": count_tokens_approximately, "trim_messages, exact counter": exact_counter()}
    answers: list[dict[str, Any]] = []
    for case in task["cases"]:
        messages = convert_to_messages(case["messages"])
        for name, counter in counters.items():
            times: list[float] = []
            result: list[BaseMessage] = []
            while len(times) < task["repeats"] and sum(times) < task["seconds"]:
                started = time.perf_counter()
                result = run(messages, task["budget"], counter)
                times.append(time.perf_counter() - started)
            sent = convert_to_openai_messages(result)
            answers.append({"name": name, "case": case["name"], "seconds": times, "messages": sent})
    print(json.dumps(answers))


main()
