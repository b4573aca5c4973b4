"""Screens whose layout matters, compared with stored screens.

`HOLDFAST_GOLDEN=write` writes them again; check the difference before you commit it.
"""

import os
import re
from pathlib import Path

import pytest

from holdfast.testing.endpoint import text_stream
from tests.chat.conftest import Served, Sit

GOLDEN = Path(__file__).parent / "golden"
ANSWER = """# Tides

Two *things* matter:

- the **moon**
- the sun, less so

```python
def height(hours: float) -> float:
    return 2.1 * cos(hours)
```

| port | high water |
|---|---|
| Cuxhaven | 04:12 |
| Esbjerg | 05:03 |

That is all."""


def assert_golden(name: str, shown: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)

    assert shown == path.read_text()


def since(text: str, mark: str) -> str:
    """Return the output between a mark and the input line, without session ids."""
    found = text[text.rindex(mark) :].rsplit("\n›", 1)[0].rstrip()
    return re.sub(r"\d{4}-\d\d-\d\d-\d{6}-[0-9a-f]{4}", "SESSION", found) + "\n"


@pytest.mark.parametrize("columns", [100, 40])
def test_help_is_a_table(sit: Sit, columns: int) -> None:
    person = sit(rows=60, columns=columns)

    person.says("/help")
    person.sees("/unpin", "Tab completes")
    person.says("/history")
    person.sees("0 turns")

    assert_golden(f"help-{columns}", since(person.text.split("› /history")[0] + "\n›", "› /help"))


@pytest.mark.parametrize("columns", [80, 30])
def test_an_answer_is_markdown(sit: Sit, served: Served, columns: int) -> None:
    served.script.append(text_stream(*re.findall(r".{1,7}", ANSWER, re.DOTALL)))
    person = sit(rows=50, columns=columns)

    person.says("Tell me about tides.")
    # This waits for the end of the answer.
    person.says("/title tides")
    person.sees("'tides'")

    assert_golden(f"answer-{columns}", since(person.text.split("› /title")[0] + "\n›", "› Tell me"))
