"""The contract of `holdfast.stores.base`, as tests for any store.

Subclass `StoreContract` in a test module and give it a fixture `store`. Override `reopen` to return the same store
opened a second time, as another process would, if that is possible. Needs `pytest` and `pytest-asyncio`.
"""

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import pytest

from holdfast.errors import MissingBlobError, SequenceConflictError, SettingsError, StoreError, UnknownSessionError
from holdfast.stores.base import IndexEntry, JsonRecord, SessionInfo, Snapshot, Store, StoredRecord, session_value_key

NOW_MS = 1_700_000_000_000


def message_record(text: str) -> JsonRecord:
    """Return a record as sessions write it."""
    return {"type": "message.appended", "schema": 1, "data": {"native": {"role": "user", "content": text}}}


AppendKind: TypeAlias = Literal["next", "outdated", "ahead", "missing blob", "not JSON", "rejected"]
"""What is right or wrong with an append: it continues its log, another one does, it leaves a gap, and so on."""


class PlannedAppend(NamedTuple):
    """An append to one of a few sessions; `cancelled_after` is the number of loop cycles until it is cancelled."""

    session: str
    kind: AppendKind = "next"
    cancelled_after: int | None = None


def random_append(chance: random.Random) -> PlannedAppend:
    """Return an append as a busy process makes them: most are right."""
    kinds: Sequence[AppendKind] = ("next", "next", "next", "next", *get_args(AppendKind))
    return PlannedAppend(f"s{chance.randrange(12)}", chance.choice(kinds), chance.choice([None] * 6 + [0, 1, 2, 3]))


async def check_concurrent_appends(store: Store, plans: Sequence[PlannedAppend]) -> None:
    """Make appends at the same time, and check that each has its own result and nothing is lost or doubled."""
    lengths = {session: await store.length(session) for session in {plan.session for plan in plans}}

    async def append(number: int, plan: PlannedAppend) -> int:
        after = lengths[plan.session] + {"outdated": -1, "ahead": 5}.get(plan.kind, 0)
        record = {"n": number, **({"bad": object()} if plan.kind == "not JSON" else {})}
        # No store that has a limit can write such a time.
        time_ms = 10**30 if plan.kind == "rejected" else NOW_MS
        blobs = ["0" * 64] if plan.kind == "missing blob" else []
        index = [IndexEntry(max(0, after), f"word{lengths[plan.session]}x{number}")]
        return await store.append(plan.session, [record], after=after, time_ms=time_ms, index=index, blobs=blobs)

    tasks = [asyncio.ensure_future(append(number, plan)) for number, plan in enumerate(plans)]
    for cycle in range(4):
        for task, plan in zip(tasks, plans, strict=True):
            if plan.cancelled_after == cycle:
                task.cancel()
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    acknowledged: dict[str, list[int]] = {}
    for number, (plan, result) in enumerate(zip(plans, results, strict=True)):
        if isinstance(result, int):
            assert plan.kind in {"next", "rejected"}, f"{plan} was written"
            assert result == lengths[plan.session] + 1
            acknowledged.setdefault(plan.session, []).append(number)
            continue
        allowed: dict[AppendKind, type[BaseException]] = {
            "missing blob": StoreError,
            "not JSON": TypeError,
            "rejected": StoreError,
        }
        assert isinstance(result, (allowed.get(plan.kind, SequenceConflictError), asyncio.CancelledError)), result
        assert not isinstance(result, asyncio.CancelledError) or plan.cancelled_after is not None
    for session, before in lengths.items():
        added = [stored.record["n"] for stored in await store.read(session, start=before)]
        mine = [number for number, plan in enumerate(plans) if plan.session == session]
        whole = [number for number in mine if plans[number].kind == "next"]
        sure = [number for number in whole if plans[number].cancelled_after is None]
        assert len(added) == await store.length(session) - before <= 1
        # What is acknowledged is stored; a cancelled append may be stored; of those that nobody cancelled, one wins.
        assert acknowledged.get(session, added) == added
        assert {*added} <= {number for number in mine if plans[number].kind in {"next", "rejected"}}
        assert added or not sure
        for number in mine:
            hits = await store.search(f"word{before}x{number}", session=session)
            assert [hit.position for hit in hits] == ([before] if number in added else [])


class StoreContract:
    """One test for each promise."""

    async def reopen(self, store: Store) -> Store | None:
        """Return the store opened a second time, or None if that is impossible."""
        del store
        return None

    async def test_appended_records_are_read_in_order_with_their_times(self, store: Store) -> None:
        await store.append("s", [message_record("a"), message_record("b")], after=0, time_ms=NOW_MS)
        length = await store.append("s", [message_record("c")], after=2, time_ms=NOW_MS + 5)

        assert length == 3
        assert await store.length("s") == 3
        assert await store.read("s") == [
            StoredRecord(0, NOW_MS, message_record("a")), StoredRecord(1, NOW_MS, message_record("b")),
            StoredRecord(2, NOW_MS + 5, message_record("c")),
        ]  # fmt: skip
        assert await store.read("s", start=1, limit=1) == [StoredRecord(1, NOW_MS, message_record("b"))]

    async def test_each_record_of_an_append_may_have_its_own_time(self, store: Store) -> None:
        records = [message_record("a"), message_record("b"), message_record("c")]
        await store.append("s", records, after=0, time_ms=[NOW_MS, NOW_MS + 9, NOW_MS + 5])

        with pytest.raises(SettingsError, match="time_ms: must be one time, or one for each of 1 records, not 2"):
            await store.append("s", [message_record("d")], after=3, time_ms=[1, 2])

        assert [stored.time_ms for stored in await store.read("s")] == [NOW_MS, NOW_MS + 9, NOW_MS + 5]
        (info,) = await store.sessions()
        assert (info.created_ms, info.updated_ms) == (NOW_MS, NOW_MS + 9)

    async def test_an_unknown_session_has_no_records(self, store: Store) -> None:
        assert await store.read("nobody") == []
        assert await store.length("nobody") == 0
        assert await store.get_snapshot("nobody") is None
        assert await store.read_from_snapshot("nobody") == (None, [])

    @pytest.mark.parametrize("name", ["", "a\0b", "half \ud800 of one"])
    async def test_every_method_rejects_an_id_that_some_store_cannot_write(self, store: Store, name: str) -> None:
        for attempt in (
            store.append(name, [message_record("a")], after=0, time_ms=NOW_MS),
            store.rewrite(name, {}, tombstone=message_record("a"), after=0, time_ms=NOW_MS),
            store.read(name),
            store.read_at(name, [0]),
            store.length(name),
            store.rename(name, "x"),
            store.delete(name),
            store.put_snapshot(name, Snapshot(0, b"")),
            store.get_snapshot(name),
            store.read_from_snapshot(name),
        ):
            with pytest.raises(SettingsError, match=r"^session: "):
                await attempt
        assert await store.sessions() == []

    async def test_a_display_name_that_some_store_cannot_write_is_rejected(self, store: Store) -> None:
        await store.append("s", [message_record("x")], after=0, time_ms=NOW_MS)

        for name in ("a\0b", "half \ud800 of one"):
            with pytest.raises(SettingsError, match=r"^name: "):
                await store.rename("s", name)

        assert [(info.id, info.name) for info in await store.sessions()] == [("s", "")]

    async def test_records_are_read_back_unchanged(self, store: Store) -> None:
        odd: JsonRecord = {
            "type": "x",
            "text": "Ünïcödé \u2028 日本語 🎉 \u0000 \\ \" '; DROP TABLE events; --",
            "numbers": [0, -1, 2**53, 1.5, None, True],
            "deep": {"a": {"b": [{"c": ""}, [""]]}},
            "large": "word " * 50_000,
        }

        await store.append("s", [odd], after=0, time_ms=NOW_MS)

        assert (await store.read("s"))[0].record == odd

    async def test_an_append_at_a_position_the_log_has_passed_raises_and_writes_nothing(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)

        with pytest.raises(SequenceConflictError) as conflict:
            await store.append("s", [message_record("b"), message_record("c")], after=0, time_ms=NOW_MS)

        assert (conflict.value.expected, conflict.value.actual) == (0, 1)
        assert [stored.record for stored in await store.read("s")] == [message_record("a")]
        with pytest.raises(SequenceConflictError):
            await store.append("new", [message_record("b")], after=3, time_ms=NOW_MS)
        assert await store.sessions(prefix="new") == []

    async def test_concurrent_writers_never_share_a_position(self, store: Store) -> None:
        async def write(number: int) -> None:
            while True:
                length = await store.length("s")
                try:
                    await store.append("s", [message_record(str(number))], after=length, time_ms=NOW_MS)
                except SequenceConflictError:
                    continue
                return

        await asyncio.gather(*(write(number) for number in range(20)))

        texts = [stored.record["data"] for stored in await store.read("s")]
        assert len(texts) == 20
        assert len({str(text) for text in texts}) == 20

    @pytest.mark.parametrize("seed", range(4))
    async def test_each_of_many_concurrent_appends_has_its_own_result(self, store: Store, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - a test that can be repeated
        await check_concurrent_appends(store, [random_append(chance) for _ in range(60)])

    async def test_sessions_are_independent(self, store: Store) -> None:
        await store.append("a", [message_record("1")], after=0, time_ms=NOW_MS)
        await store.append("b", [message_record("2")], after=0, time_ms=NOW_MS)

        assert [stored.record for stored in await store.read("b")] == [message_record("2")]

    async def test_a_blob_is_stored_once_under_its_hash(self, store: Store) -> None:
        content = os.urandom(1_000) + b"x" * 200_000

        first, second = await store.put_blob(content), await store.put_blob(content)

        assert first == second
        assert len(first) == 64
        assert await store.get_blob(first) == content
        assert await store.get_blob(await store.put_blob(b"")) == b""
        with pytest.raises(MissingBlobError):
            await store.get_blob("0" * 64)

    async def test_an_append_that_refers_to_a_missing_blob_raises_and_writes_nothing(self, store: Store) -> None:
        digest = await store.put_blob(b"large")
        await store.append("a", [message_record("x")], after=0, time_ms=NOW_MS, blobs=[digest])
        await store.delete("a")

        with pytest.raises(MissingBlobError) as missing:
            await store.append("b", [message_record("y")], after=0, time_ms=NOW_MS, blobs=[digest])

        assert missing.value.digest == digest
        assert (await store.read("b"), await store.sessions()) == ([], [])
        await store.put_blob(b"large")
        assert await store.append("b", [message_record("y")], after=0, time_ms=NOW_MS, blobs=[digest, digest]) == 1
        assert await store.append("b", [message_record("z")], after=1, time_ms=NOW_MS, blobs=[digest]) == 2

    async def test_a_search_returns_the_best_hits_first(self, store: Store) -> None:
        texts = ["the parser reads totals", "nothing of the kind", "totals and src/report/parseTotals.py", "会议纪要"]
        index = [IndexEntry(position, text) for position, text in enumerate(texts)]
        await store.append("s", [message_record(text) for text in texts], after=0, time_ms=NOW_MS, index=index)
        other = [IndexEntry(0, "totals elsewhere")]
        await store.append("t", [message_record("x")], after=0, time_ms=NOW_MS, index=other)

        async def found(words: str, session: str | None = "s") -> list[tuple[str, int]]:
            return [(hit.session, hit.position) for hit in await store.search(words, session=session)]

        assert (await found("report totals"))[0] == ("s", 2)
        assert set(await found("totals")) == {("s", 0), ("s", 2)}
        assert ("t", 0) in await found("totals", None)
        assert await found("parsetotals") == [("s", 2)]
        assert await found("纪要") == [("s", 3)]
        assert await found("unheard of nowhere") == await found("of")
        assert await found("") == await found('"; DROP') == []
        assert await found("totals", "nobody") == []
        assert len(await store.search("totals", limit=1)) == 1

    async def test_a_search_finds_other_forms_prefers_rare_words_and_respects_its_range(self, store: Store) -> None:
        texts = ["we camped at the lake", "the lake is calm", "the lake is calm", "the lake is cold", "camping is over"]
        words = [IndexEntry(position, text) for position, text in enumerate(texts)]
        await store.append("a", [message_record(text) for text in texts], after=0, time_ms=NOW_MS, index=words)

        async def found(words: str, start: int = 0, stop: int | None = None) -> list[int]:
            return [hit.position for hit in await store.search(words, session="a", start=start, stop=stop)]

        assert set(await found("camping")) == {0, 4}
        assert (await found("lake cold"))[0] == 3
        assert await found("calm") == [2, 1], "of equal hits the newest comes first"
        assert await found("lake", 1, 3) == [2, 1]
        assert await found("lake", 4) == []

    async def test_a_search_ignores_accents_width_and_case_and_finds_single_characters(self, store: Store) -> None:
        found_by = {
            "我的猫叫小白，它喜欢鱼": ["猫", "鱼", "小白"],
            "Die Straße ist ÜBERHÖHT": ["STRASSE", "überhöht", "uberhoht"],
            "コードはＡＢＣ１２３です": ["abc123", "ＡＢＣ１２３"],
            "η ΑΘΗΝΑ, İstanbul, naïve cafe\u0301": ["αθήνα", "istanbul", "naive", "CAFÉ"],
            "Ёлка, 한국어로, القاهرة": ["ёлка", "елка", "한국어", "القاهرة"],
            "गुलाबी हाथी नाचता है।": ["हाथी", "गुलाबी", "नाचता"],
            "बिल्ली सोती है": ["सोती"],
            "שָׁלוֹם עולם, كِتَابٌ جديد": ["שלום", "كتاب", "كِتَاب"],
            "Donau\u00addampf\u00adschiff, می\u200cخواهم": ["donaudampfschiff", "میخواهم"],
        }
        await self._check_found_by(store, found_by)

    async def test_a_search_finds_other_forms_of_words_in_languages_that_inflect_or_attach(self, store: Store) -> None:
        found_by = {
            "Я купил квартиру в Новосибирске": ["какая квартира", "Новосибирск", "квартирами"],
            "Ключи от сейфа лежат в ящике": ["ключ", "сейф", "какой ящик"],
            "Αγόρασα ένα σπίτι στη Θεσσαλονίκη": ["σπίτια", "Θεσσαλονίκης"],
            "შარშან ბათუმში სახლი ვიყიდე": ["ბათუმი"],
            "Անցյալ տարի Գյումրիում տուն գնեցի": ["Գյումրի", "տունը"],
            "اشتريت بيتا في الإسكندرية": ["البيت", "الاسكندرية", "والإسكندرية"],
            "קניתי ספר בחיפה": ["חיפה", "ובחיפה", "הספר"],
            "кот, дом, ваза": ["кот", "дом", "ваза"],
        }
        await self._check_found_by(store, found_by)
        missed = await store.search("домой котом вазой", session="a")
        assert missed == [], "a short word has its own forms only"

    async def _check_found_by(self, store: Store, found_by: Mapping[str, Sequence[str]]) -> None:
        """Store texts, and check that each query finds the text that it belongs to and no other."""
        index = [IndexEntry(position, text) for position, text in enumerate(found_by)]
        await store.append("a", [message_record(text) for text in found_by], after=0, time_ms=NOW_MS, index=index)

        async def found(words: str) -> list[int]:
            return [hit.position for hit in await store.search(words, session="a")]

        for position, queries in enumerate(found_by.values()):
            assert [await found(query) for query in queries] == [[position]] * len(queries), queries

    async def test_a_search_for_a_name_of_several_words_finds_them_side_by_side(self, store: Store) -> None:
        texts = ["see src/report/totals.py", "py totals report src see", "हाथी", "थ ह"]
        index = [IndexEntry(position, text) for position, text in enumerate(texts)]
        await store.append("a", [message_record(text) for text in texts], after=0, time_ms=NOW_MS, index=index)

        async def found(words: str) -> list[int]:
            return [hit.position for hit in await store.search(words, session="a")]

        assert await found("src/report/totals.py") == [0, 1], "the older message holds the name itself"
        assert await found("हाथी") == [2], "the other one holds the letters only"

    async def test_sessions_are_listed_newest_first_and_in_pages(self, store: Store) -> None:
        for number in range(5):
            await store.append(f"s{number}", [message_record("x")], after=0, time_ms=NOW_MS + number)
        await store.append("s1", [message_record("y")], after=1, time_ms=NOW_MS + 9)

        first = await store.sessions(limit=2)
        rest = await store.sessions(limit=9, before=(first[-1].updated_ms, first[-1].id))

        assert [info.id for info in [*first, *rest]] == ["s1", "s4", "s3", "s2", "s0"]
        assert (first[0].length, first[0].created_ms, first[0].updated_ms) == (2, NOW_MS + 1, NOW_MS + 9)
        assert [info.id for info in await store.sessions(prefix="s3")] == ["s3"]
        assert await store.sessions(prefix="%") == []

    async def test_a_clock_that_goes_backwards_does_not_change_the_last_change_of_a_session(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
        await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS - 50)

        assert (await store.sessions())[0].updated_ms == NOW_MS
        assert [stored.time_ms for stored in await store.read("s")] == [NOW_MS, NOW_MS - 50]

    async def test_a_session_can_be_renamed(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)

        await store.rename("s", "Quarterly report")

        assert (await store.sessions())[0].name == "Quarterly report"
        with pytest.raises(UnknownSessionError):
            await store.rename("nobody", "x")

    async def test_an_append_names_its_session(self, store: Store) -> None:
        with pytest.raises(SettingsError):
            await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS, name="half \ud800")
        assert await store.sessions() == []

        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS, name="Weekly report")
        await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS)
        await store.append("s", [message_record("c")], after=2, time_ms=NOW_MS, name="Monthly report")

        assert await store.sessions() == [SessionInfo("s", "Monthly report", 3, NOW_MS, NOW_MS)]

    async def test_deleting_a_session_deletes_its_records_index_snapshot_and_unshared_blobs(self, store: Store) -> None:
        own, shared = await store.put_blob(b"own"), await store.put_blob(b"shared")
        index = [IndexEntry(0, "findme")]
        await store.append("a", [message_record("x")], after=0, time_ms=NOW_MS, blobs=[own, shared], index=index)
        await store.append("b", [message_record("y")], after=0, time_ms=NOW_MS, blobs=[shared], index=index)
        await store.put_snapshot("a", Snapshot(1, b"shortcut"))

        assert await store.delete("a")

        assert await store.read("a") == []
        assert [info.id for info in await store.sessions()] == ["b"]
        assert [hit.session for hit in await store.search("findme")] == ["b"]
        assert await store.get_snapshot("a") is None
        assert await store.get_blob(shared) == b"shared"
        with pytest.raises(MissingBlobError):
            await store.get_blob(own)
        assert not await store.delete("a")
        assert await store.append("a", [message_record("again")], after=0, time_ms=NOW_MS) == 1

    async def test_a_session_is_deleted_only_while_its_log_has_the_length_that_the_caller_names(
        self, store: Store
    ) -> None:
        await store.append("s", [message_record("a"), message_record("b")], after=0, time_ms=NOW_MS)

        assert not await store.delete("s", length=1)
        assert not await store.delete("s", length=0)
        assert [stored.record for stored in await store.read("s")] == [message_record("a"), message_record("b")]
        assert await store.delete("s", length=2)
        assert await store.length("s") == 0
        assert not await store.delete("s", length=0)

    async def test_a_rewrite_removes_the_old_content_from_log_index_snapshot_and_blobs(self, store: Store) -> None:
        own, shared, new = [await store.put_blob(content) for content in (b"own", b"shared", b"new")]
        index = [IndexEntry(0, "findme alpha"), IndexEntry(1, "beta")]
        await store.append(
            "a", [message_record("x"), message_record("y")], after=0, time_ms=NOW_MS, blobs=[own, shared], index=index
        )
        await store.append("b", [message_record("z")], after=0, time_ms=NOW_MS, blobs=[shared])
        await store.put_snapshot("a", Snapshot(1, b"shortcut"))

        length = await store.rewrite(
            "a",
            {0: message_record("-")},
            tombstone=message_record("gone"),
            after=2,
            time_ms=NOW_MS + 1,
            index=[IndexEntry(0, "alpha")],
            blobs=[new],
            dropped=[own, shared],
        )

        assert length == 3
        assert await store.read("a") == [
            StoredRecord(0, NOW_MS, message_record("-")), StoredRecord(1, NOW_MS, message_record("y")),
            StoredRecord(2, NOW_MS + 1, message_record("gone")),
        ]  # fmt: skip
        assert await store.search("findme") == []
        assert [hit.position for hit in await store.search("alpha")] == [0]
        assert [hit.position for hit in await store.search("beta")] == [1]
        assert await store.get_snapshot("a") is None
        assert [await store.get_blob(digest) for digest in (shared, new)] == [b"shared", b"new"]
        with pytest.raises(MissingBlobError):
            await store.get_blob(own)

    async def test_a_rewrite_at_a_position_the_log_has_passed_changes_nothing(self, store: Store) -> None:
        await store.append("a", [message_record("x")], after=0, time_ms=NOW_MS, index=[IndexEntry(0, "findme")])

        with pytest.raises(SequenceConflictError):
            await store.rewrite(
                "a",
                {0: message_record("-")},
                tombstone=message_record("gone"),
                after=0,
                time_ms=NOW_MS,
                index=[IndexEntry(0, "")],
            )

        assert [stored.record for stored in await store.read("a")] == [message_record("x")]
        assert [hit.position for hit in await store.search("findme")] == [0]

    async def test_single_records_are_read_by_position(self, store: Store) -> None:
        await store.append("s", [{"n": number} for number in range(5)], after=0, time_ms=7)

        picked = await store.read_at("s", [4, 1, 1, 9])

        assert picked == [StoredRecord(1, 7, {"n": 1}), StoredRecord(4, 7, {"n": 4})]
        assert await store.read_at("nobody", [0]) == []

    async def test_a_new_snapshot_replaces_the_old_one(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
        assert await store.put_snapshot("s", Snapshot(1, b"one"))
        assert await store.put_snapshot("s", Snapshot(1, b"two" * 1_000))

        assert await store.get_snapshot("s") == Snapshot(1, b"two" * 1_000)

    async def test_a_snapshot_of_another_length_than_the_log_is_not_stored(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
        await store.append("s", [message_record("b")], after=1, time_ms=NOW_MS)

        assert not await store.put_snapshot("s", Snapshot(1, b"of the past"))
        assert not await store.put_snapshot("nobody", Snapshot(0, b""))
        assert await store.get_snapshot("s") is None

    async def test_a_session_is_read_from_its_snapshot_on(self, store: Store) -> None:
        records = [StoredRecord(number, NOW_MS, {"n": number}) for number in range(5)]
        await store.append("other", [{"n": 9}], after=0, time_ms=NOW_MS)
        await store.put_snapshot("other", Snapshot(1, b"other"))
        await store.append("s", [{"n": 0}, {"n": 1}], after=0, time_ms=NOW_MS)
        assert await store.read_from_snapshot("s") == (None, records[:2])

        await store.put_snapshot("s", Snapshot(2, b"two" * 1_000))
        assert await store.read_from_snapshot("s") == (Snapshot(2, b"two" * 1_000), [])

        await store.append("s", [{"n": number} for number in (2, 3, 4)], after=2, time_ms=NOW_MS)
        assert await store.read_from_snapshot("s") == (Snapshot(2, b"two" * 1_000), records[2:])
        assert await store.read_from_snapshot("s", limit=1) == (Snapshot(2, b"two" * 1_000), records[2:3])
        assert await store.read_from_snapshot("s", limit=0) == (Snapshot(2, b"two" * 1_000), [])

    async def test_a_value_is_stored_under_its_key(self, store: Store) -> None:
        await store.put_value("limit:gpt", {"tokens": 1})
        await store.put_value("limit:gpt", {"tokens": 2})

        assert await store.get_value("limit:gpt") == {"tokens": 2}
        assert await store.get_value("limit:other") is None

    async def test_values_are_listed_by_the_beginning_of_their_keys(self, store: Store) -> None:
        for key in ("limit:a", "limit:b", "limits", "%", "other:limit:"):
            await store.put_value(key, {"key": key})

        assert await store.values("limit:") == {key: {"key": key} for key in ("limit:a", "limit:b")}
        assert await store.values("nothing") == {}

    async def test_a_single_value_can_be_deleted(self, store: Store) -> None:
        for key in ("limit:a", "limit:ab"):
            await store.put_value(key, {"key": key})

        for key in ("limit:a", "limit:unknown"):
            await store.delete_value(key)

        assert await store.get_value("limit:a") is None
        assert await store.values("limit:") == {"limit:ab": {"key": "limit:ab"}}

    async def test_deleting_a_session_deletes_exactly_the_values_about_it(self, store: Store) -> None:
        others = [
            session_value_key("a:s", "memory"),
            session_value_key("a:s", "consolidated", "b"),
            "limit:s",
            "memory:b:s",
        ]
        about = [
            session_value_key("s", "memory"),
            session_value_key("s", "board"),
            session_value_key("s", "retention"),
            session_value_key("s", "consolidated", "b"),
        ]
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
        for key in (*others, *about):
            await store.put_value(key, {"key": key})

        await store.delete("s")

        assert [key for key in (*others, *about) if await store.get_value(key)] == others

    async def test_another_process_reads_what_was_acknowledged(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS, index=[IndexEntry(0, "findme")])
        again = await self.reopen(store)
        if again is None:
            pytest.skip("this store cannot be opened twice")

        try:
            assert [stored.record for stored in await again.read("s")] == [message_record("a")]
            await again.append("s", [message_record("b")], after=1, time_ms=NOW_MS)
            assert await store.length("s") == 2
            assert [hit.position for hit in await again.search("findme")] == [0]
        finally:
            await again.close()

    async def test_a_closed_store_opens_again(self, store: Store) -> None:
        await store.append("s", [message_record("a")], after=0, time_ms=NOW_MS)
        await store.close()

        assert await store.length("s") == 1
        await store.close()
        await store.close()
