"""M2 evidence retention and M3 recoverable answers, for recordings that come with questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.lab.metrics.retention import RecallFunction
from holdfast.lab.played import full_message_text
from holdfast.lab.recordings import Probe, Recording
from holdfast.lab.replay import ObservedRequest
from holdfast.testing.chat import assistant_message, user_message

MIN_ANSWER_CHARS = 2


@dataclass(slots=True)
class EvidenceRetention:
    """M2: of the questions, those for which every message that they need stands verbatim in the request at the end.

    `questions` is that share, `hard` that of the questions that need more than one message, `turns` the share of the
    messages themselves. M3: of the answers that stand verbatim in the conversation, the share in the request. With a
    recall behind each name `_recall`: in the request, or in one recall of 1,000 tokens whose query is the question.
    """

    recall: RecallFunction | None = None
    shares: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    _last: ObservedRequest | None = None

    async def observe(self, observed: ObservedRequest) -> None:
        """Take in one request: the last one counts."""
        self._last = observed

    async def figures(self) -> Mapping[str, float]:
        """Return the shares."""
        last = self._last
        if last is None:
            return {}
        texts = [full_message_text(native) for native in last.recording.messages[: last.index]]
        whole = "\n".join(texts)
        for probe in last.recording.probes:
            found = [last.text, await self.recall(probe.question)] if self.recall else [last.text]
            self._judge(probe, texts, whole, found)
        suffix = "_recall" if self.recall else ""
        return {f"{name}{suffix}": met / total for name, (met, total) in self.shares.items()}

    def _judge(self, probe: Probe, texts: Sequence[str], whole: str, views: Sequence[str]) -> None:
        found = [any(texts[index] in place for place in views) for index in probe.evidence]
        for is_found in found:
            self._count("M2.turns", is_met=is_found)
        self._count("M2.questions", is_met=all(found))
        if len(found) > 1:
            self._count("M2.hard", is_met=all(found))
        if len(probe.answer) >= MIN_ANSWER_CHARS and probe.answer in whole:
            self._count("M3.answers", is_met=any(probe.answer in place for place in views))

    def _count(self, name: str, *, is_met: bool) -> None:
        count = self.shares.setdefault(name, [0, 0])
        count[0] += is_met
        count[1] += 1


def with_final_question(recording: Recording) -> Recording:
    """Return a recording with something asked at its end, so that there is a request to look into."""
    asked = [user_message("?"), assistant_message("…")]
    nothing: list[None] = [None, None]
    return replace(
        recording,
        messages=[*recording.messages, *asked],
        times=[*recording.times, *nothing],
        usage=[*recording.usage, *nothing],
    )
