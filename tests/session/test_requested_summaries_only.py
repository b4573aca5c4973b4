"""With a model for requested compactions alone, automatic ones are made by rule."""

from holdfast import Session
from holdfast.compaction import CompactionOptions
from holdfast.core.history.events import CompactionCompleted
from holdfast.testing.models import ScriptedModel

WORDS = "word " * 200


async def test_a_model_for_requests_alone_writes_no_automatic_summary() -> None:
    model = ScriptedModel(["Intent: find the lost file [#0]. Next: look in docs/."])
    options = CompactionOptions(manual=model)
    async with Session.open("s", model="gpt-5", compaction=options) as session:
        for number in range(12):
            await session.record([{"role": "user", "content": f"Where is file {number}? {WORDS}"}])
            await session.prepare(3_000)
            await session.record([{"role": "assistant", "content": f"Not here. {WORDS}"}])
        automatic = [event for event in await session.events() if isinstance(event, CompactionCompleted)]
        calls_before = len(model.prompts)

        requested = await session.compact()

    assert automatic
    assert {event.summary.by_model for event in automatic if event.summary} == {None}
    assert (calls_before, len(model.prompts)) == (0, 1)
    assert requested.summary.by_model == model.name
