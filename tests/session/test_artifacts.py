"""Large tool results have names, and are given out whole or in part."""

import time
from itertools import repeat
from typing import Any

import pytest

from holdfast import MalformedInputError
from holdfast.apps.chat.turn import ReferenceFilter
from holdfast.core.recall.artifacts import strip_artifact_references
from holdfast.errors import ArtifactTooLargeError, MissingBlobError, UnknownArtifactError
from holdfast.recall import RecallQuery
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel

OUTPUT = "".join(f"line {number} of src/app_{number}.py\n" for number in range(1, 401))
TALK = [
    user_message("look"), tool_call_message("c1", name="run_tests", arguments={"command": "pytest -q"}),
    tool_result_message("c1", f"{OUTPUT}FAILED tests/test_app.py\nexit code 1"), assistant_message("It fails."),
    tool_call_message("c2"), tool_result_message("c2", "small"), assistant_message("ok"),
]  # fmt: skip


@pytest.mark.seed("B-10", "B-16")
async def test_a_large_result_has_a_name_a_size_a_preview_and_findings() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)

        (found,) = await session.artifacts()

    assert (found.tool, found.call_id, found.position, found.arguments) == (
        "run_tests", "c1", 2, '{"command": "pytest -q"}',
    )  # fmt: skip
    assert found.id.startswith("compress_run_tests_c1_")
    assert found.tokens > 2_000
    assert found.preview.startswith("line 1 of src/app_1.py line 2 of")
    assert found.findings[:2] == ("exit 1: FAILED tests/test_app.py exit code 1", "402 lines")
    assert found.findings[2].startswith("names src/app_1.py, src/app_2.py")
    assert str(found).count("\n") == 0
    assert f"size: {found.tokens:,} tokens, #2" in str(found)


@pytest.mark.seed("B-10", "B-16")
async def test_an_artifact_is_had_whole_or_in_part_by_any_of_its_names() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)
        (found,) = await session.artifacts()

        whole = {await session.artifact(name) for name in (found.id, "c1", "#2")}

        assert whole == {f"{OUTPUT}FAILED tests/test_app.py\nexit code 1"}
        assert await session.artifact("#2", lines=(2, 3)) == "line 2 of src/app_2.py\nline 3 of src/app_3.py\n"
        assert await session.artifact("#2", chars=(0, 6)) == "line 1"


@pytest.mark.seed("B-10")
async def test_what_is_larger_than_a_share_of_the_window_is_had_in_parts_only() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)

        with pytest.raises(ArtifactTooLargeError) as refused:
            await session.artifact("#2", budget=8_000)
        part = await session.artifact("#2", budget=8_000, lines=(1, 10))

    assert (refused.value.limit, refused.value.tokens > 2_400) == (2_400, True)
    assert part.endswith("src/app_10.py\n")


@pytest.mark.parametrize("reference", ["#5", "#99", "c2", "nothing", "", "#" + "9" * 5_000])
async def test_an_unknown_reference_is_named(reference: str) -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)

        with pytest.raises(UnknownArtifactError, match="lists all of them"):
            await session.artifact(reference)


@pytest.mark.parametrize("wrong", [{"lines": (0, 1)}, {"lines": (3, 2)}, {"chars": (1,)}, {"chars": "1-2"}])
async def test_a_range_that_cannot_be_is_named(wrong: dict[str, Any]) -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)

        with pytest.raises(MalformedInputError, match=f"artifact.{next(iter(wrong))}"):
            await session.artifact("#2", **wrong)


@pytest.mark.seed("B-21")
async def test_an_artifact_of_another_delegation_or_from_before_a_clear_is_unknown() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([user_message("go")])
        async with session.delegate("a") as one, session.delegate("b") as other:
            await one.record(TALK[1:4])
            assert len(await session.artifacts(scope=one.scope)) == 1
            assert await session.artifacts(scope=other.scope) == []
            with pytest.raises(UnknownArtifactError):
                await session.artifact("#2", scope=other.scope)
        await session.clear()

        with pytest.raises(UnknownArtifactError):
            await session.artifact("#2")


async def test_an_artifact_whose_content_was_deleted_by_hand_is_told_of() -> None:
    store = MemoryStore()
    async with Session.open("c1", store=store, model="gpt-5") as session:
        await session.record([user_message("go"), tool_call_message("c1"), tool_result_message("c1", "word " * 40_000)])
        await session.record([user_message(f"message {number}") for number in range(120)])
    store._blobs.clear()

    async with Session.open("c1", store=store, model="gpt-5") as again:
        assert await again.artifacts() == []
        with pytest.raises(MissingBlobError):
            await again.artifact("#2")


@pytest.mark.seed("B-16")
async def test_a_reference_is_no_part_of_an_answer_to_a_person() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)
        (found,) = await session.artifacts()

    assert (
        strip_artifact_references(f"Three tests fail.\n\n{found}\n\nShall I go on?")
        == "Three tests fail.\n\nShall I go on?"
    )
    assert strip_artifact_references("[see a] and [b]") == "[see a] and [b]"


REFERENCE = (
    '[Artifact: "read" (id: compress_read_c1_ebc8a734) | description: {"path": "a"} | size: 9 tokens, #2 | summary: x]'
)


@pytest.mark.seed("B-16")
@pytest.mark.parametrize(
    ("said_by_model", "shown"),
    [
        (f"See {REFERENCE}: it indexes items[0].", "See : it indexes items[0]."),
        (f"- {REFERENCE} leaks; see [docs](http://x)\nnext", "-  leaks; see [docs](http://x)\nnext"),
        (REFERENCE.replace(" | ", "\n| "), ""),
        (REFERENCE.lower(), ""),
        (f"{REFERENCE[:-1]}\n\nNo end, [so] it stays.", f"{REFERENCE[:-1]}\n\nNo end, [so] it stays."),
    ],
)
def test_only_a_reference_is_taken_out_of_what_a_model_says(said_by_model: str, shown: str) -> None:
    curtain = ReferenceFilter()
    pieces = [curtain.feed(letter) for letter in said_by_model]

    assert strip_artifact_references(said_by_model) == shown
    assert "".join([*pieces, curtain.flush()]) == shown


def test_many_beginnings_of_references_are_read_in_no_time() -> None:
    start = time.process_time()

    assert strip_artifact_references('[Artifact: "a" (id: b) ' * 20_000).startswith('[Artifact: "a"')
    assert time.process_time() - start < 2


async def test_a_reference_has_no_bracket_but_its_own() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(
            [tool_call_message("c1", arguments={"paths": ["a", "b"]}), tool_result_message("c1", "[x] y ] " * 2_000)]
        )

        (found,) = await session.artifacts()

    assert strip_artifact_references(f"a {found} b") == "a  b"


@pytest.mark.seed("B-16")
async def test_recall_knows_an_artifact_by_the_id_that_its_line_names() -> None:
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(TALK)
        (found,) = await session.artifacts()

        recalled = await session.recall(RecallQuery(refs=found.id))

    assert [(one.ref, one.text[:22]) for one in recalled.excerpts] == [("#2", "line 1 of src/app_1.py")]


@pytest.mark.seed("B-10", "B-16")
@pytest.mark.parametrize(
    "call_id",
    [
        f"call_1__thought__{'Ab+/' * 700}==",
        "functions.read:0",
        "a b",
        "x]y)z",
        'say "hi"',
        "a,b;c",
        "one|two",
        "#3",
        "tool@1/2=3~4^5&6%7$8",
        "läs-文",
        "\u200bhidden",
    ],
)
async def test_an_artifact_has_a_short_name_that_recall_knows_whatever_the_id_of_its_call(call_id: str) -> None:
    said = [user_message("look"), tool_call_message(call_id, name='read "(all)"'), tool_result_message(call_id, OUTPUT)]
    async with Session.open("c1", model="gpt-5") as session:
        await session.record(said)
        (found,) = await session.artifacts()
        shown = str(found).partition("(id: ")[2].partition(") | ")[0]

        recalled = await session.recall(RecallQuery(refs=shown))
        whole = await session.artifact(shown)

    assert ([one.ref for one in recalled.excerpts], whole, shown) == (["#2"], OUTPUT, found.id)
    assert len(str(found)) < 1_000
    assert strip_artifact_references(f"a {found} b") == "a  b"


@pytest.mark.seed("B-16")
@pytest.mark.parametrize("policy", ["inkeep", "copilot"])
async def test_a_compaction_with_artifacts_tells_a_model_that_has_recall_how_to_get_them(policy: str) -> None:
    writer = ScriptedModel(repeat("- summary of things"))
    async with Session.open("c1", policy=policy, model="gpt-5", summarizer=writer) as session:
        await session.record([*TALK, user_message("and now?")])
        await session.prepare(9_000, has_recall=True)

        await session.compact()
        request = await session.prepare(9_000, has_recall=True)

    assert any("[All of it can be looked up: recall with ref #0-#" in str(one["content"]) for one in request.messages)


async def test_lines_end_with_a_line_feed_wherever_they_are_counted() -> None:
    text = "".join(f"row {number}\x0cpage\u2028more\n" for number in range(1, 1_000))
    async with Session.open("c1", model="gpt-5") as session:
        await session.record([tool_call_message("c1"), tool_result_message("c1", text)])
        (found,) = await session.artifacts()

        assert await session.artifact("#1", lines=(10, 10)) == "row 10\x0cpage\u2028more\n"
        assert (await session.recall("#1:L10-L10")).excerpts[0].text == "row 10\x0cpage\u2028more\n"
        assert "999 lines" in found.findings
