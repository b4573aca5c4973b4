"""Our `dataclass` behaves as the standard one, which it replaces because it is expensive to define a class with."""

import copy
import dataclasses
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from holdfast import Budget, Policy, Request, govern
from holdfast.core.conversation.messages import Message, Text, user
from holdfast.core.history import events as log
from holdfast.dataclass import dataclass, filled_fields_reader

Decorator = Callable[..., Callable[[type], Any]]


def place(decorator: Decorator) -> Any:
    """Return a class with every kind of field, made by a decorator."""

    @decorator(frozen=True, slots=True)
    class Place:
        """A place."""

        name: str
        tags: list[str] = field(default_factory=list[str])
        size: int = 3
        note: str = field(default="", compare=False, repr=False)
        cache: dict[str, int] = field(default_factory=dict[str, int], init=False, compare=False)
        origin: str = field(default="here", kw_only=True)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("a place has no negative size")

    return Place


BOTH = [pytest.param(dataclass, id="ours"), pytest.param(dataclasses.dataclass, id="standard")]


@pytest.mark.parametrize("decorator", BOTH)
def test_an_instance_has_its_values_defaults_and_checks(decorator: Decorator) -> None:
    kind = place(decorator)

    one, other = kind("a"), kind("a", ["x"], 4, note="n", origin="there")

    assert (one.name, one.tags, one.size, one.note, one.cache, one.origin) == ("a", [], 3, "", {}, "here")
    assert (other.tags, other.size, other.note, other.origin) == (["x"], 4, "n", "there")
    assert one.tags is not kind("a").tags
    with pytest.raises(ValueError, match="negative"):
        kind("a", size=-1)
    with pytest.raises(TypeError, match=r"Place\.__init__\(\) missing 1 required positional argument: 'name'"):
        kind()


@pytest.mark.parametrize("decorator", BOTH)
def test_equality_hash_and_repr_use_the_fields_that_ask_for_it(decorator: Decorator) -> None:
    kind = place(decorator)

    assert kind("a", note="n") == kind("a")
    assert kind("a") != kind("b")
    assert kind("a") != "a"
    assert str(kind("a", note="n")).endswith("Place(name='a', tags=[], size=3, cache={}, origin='here')")
    with pytest.raises(TypeError, match="unhashable"):
        hash(kind("a"))
    assert hash(kind("a", ())) == hash(kind("a", ()))


@pytest.mark.parametrize("decorator", BOTH)
def test_a_frozen_instance_cannot_change_and_has_no_other_attributes(decorator: Decorator) -> None:
    one = place(decorator)("a")

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del one.name
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("decorator", BOTH)
def test_the_standard_functions_for_dataclasses_work(decorator: Decorator) -> None:
    kind = place(decorator)
    one = kind("a", ["x"])

    assert [item.name for item in fields(kind)] == ["name", "tags", "size", "note", "cache", "origin"]
    assert replace(one, name="b") == kind("b", ["x"])
    assert asdict(one) == {"name": "a", "tags": ["x"], "size": 3, "note": "", "cache": {}, "origin": "here"}
    assert copy.deepcopy(one) == one
    assert kind.__match_args__ == ("name", "tags", "size", "note")


@pytest.mark.parametrize("decorator", BOTH)
def test_the_signature_is_known_before_and_after_the_first_instance(decorator: Decorator) -> None:
    kind = place(decorator)
    expected = ["name", "tags", "size", "note", "origin"]

    assert list(inspect.signature(kind).parameters) == expected
    kind("a")
    assert list(inspect.signature(kind).parameters) == expected
    assert get_type_hints(kind.__init__)["size"] is int


@pytest.mark.parametrize("decorator", BOTH)
def test_a_class_keeps_the_methods_that_it_defines(decorator: Decorator) -> None:
    @decorator(slots=True)
    class Own:
        """A class with methods of its own."""

        value: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int) and other == self.value

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    one = Own(1)

    assert (one == 1, hash(one), repr(one)) == (True, 7, "own")


@pytest.mark.parametrize("decorator", BOTH)
def test_an_instance_that_can_change_is_equal_by_its_fields_and_has_no_hash(decorator: Decorator) -> None:
    @decorator(slots=True)
    class Box:
        """A value that can change."""

        value: object = None

    one = Box()
    one.value = one

    assert repr(one).endswith("Box(value=...)")
    assert Box() == Box()
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_messages_and_budgets_survive_pickling() -> None:
    message, budget = user("hello"), Budget(1_000, turns=3)

    assert pickle.loads(pickle.dumps((message, budget))) == (message, budget)  # noqa: S301 - our own bytes


def test_a_public_class_is_matched_by_position() -> None:
    match user("hello"):
        case Message(role, (Text(text),)):
            assert (role, text) == ("user", "hello")
        case _:
            pytest.fail("not matched")


def test_the_signature_of_a_policy_names_its_settings() -> None:
    assert "compaction" in inspect.signature(Policy).parameters


def test_a_compiled_reader_leaves_out_optional_fields_that_are_empty() -> None:
    read = filled_fields_reader({"name": "name", "deep": "inner.value", "list": "items"}, {"deep", "list"})
    empty = SimpleNamespace(name=None, inner=SimpleNamespace(value=None), items=())
    filled = SimpleNamespace(name="a", inner=SimpleNamespace(value=0), items=(1,))

    assert read(empty) == {"name": None}
    assert [*read(filled).items()] == [("name", "a"), ("deep", 0), ("list", (1,))]


STATE = {
    "core": {
        *("Actions", "AgentWork", "BoardDraft", "Constraints", "Context", "Evictions", "ExcerptPacker", "FileRecords"),
        *("History", "Ledger", "PlanInput", "RecallMarks", "RequestExtras", "Scopes", "Situation", "UsedNames", "View"),
        *("_DigestLines", "_OpenLedger"),
    },
    "wire": {"Answer"},
    "session": {"ImportResult", "RequestOptions", "_RecordCopy", "_RetryState"},
    "apps.gateway": {"Chain", "OpenAnswer", "OpenSession", "_PlacedSlices", "_Used"},
}
"""The dataclasses that grow or count, or keep what they have computed; every other one is a value."""


@pytest.mark.parametrize("package", STATE)
def test_values_cannot_change_and_hold_nothing_but_their_fields(package: str) -> None:
    root = import_module(f"holdfast.{package}")
    modules = [import_module(found.name) for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")]
    defined = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__
    ]

    assert {kind.__name__ for kind in defined if kind.__setattr__ is object.__setattr__} == STATE[package]
    # Its cached properties need a place beside the fields.
    assert {kind.__name__ for kind in defined if kind.__dictoffset__} <= {"ClientBody"}


def test_an_event_is_made_with_the_names_of_its_fields() -> None:
    kinds = [
        kind for kind in vars(log).values() if isinstance(kind, type) and is_dataclass(kind) and "KIND" in vars(kind)
    ]

    assert len(kinds) > 20
    assert {
        kind.__name__: parameter.name
        for kind in kinds
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    } == {}


def through_pickle(request: Request) -> Request:
    return pickle.loads(pickle.dumps(request))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("again", [through_pickle, copy.copy, copy.deepcopy])
def test_a_request_can_be_pickled_and_copied_before_its_tokens_are_read(again: Callable[[Request], Request]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    request = govern(messages, budget=16_000, model="gpt-5")

    same = again(request)

    assert (same, same.tokens.total, same.tokens.provenance) == (request, request.tokens.total, "counted")
    assert govern(messages, budget=16_000, model="gpt-5", previous=same) == request
