"""`dataclass`: the standard one, at a tenth of what it costs to define a class.

`dataclasses.dataclass` compiles six functions for each class, which takes almost a millisecond, and a start imports far
more classes than it creates instances of. Here, `__init__` is compiled when the first instance is created, and the
other methods are ordinary functions. The rest is the standard one's: `fields`, `replace`, `asdict`, pattern matching
and pickling work as usual. `InitVar` is not supported.

`filled_fields_reader` compiles a function that reads the fields of a value: a loop over them takes three times as long.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, field, fields
from dataclasses import dataclass as standard_dataclass
from functools import cached_property
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from dataclasses import Field
    from inspect import Signature

T = TypeVar("T")


class _Dataclass(Protocol):
    __dataclass_fields__: "ClassVar[dict[str, Field[object]]]"


@dataclass_transform(field_specifiers=(field,))
def dataclass(*, frozen: bool = False, slots: bool = False, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a dataclass; the options are those of `dataclasses.dataclass`."""

    def define(cls: type[T]) -> type[T]:
        own = cls.__dict__
        # Into an empty docstring the standard one writes a signature, which takes as long as dozens of classes.
        cls.__doc__ = cls.__doc__ or cls.__name__
        defined = standard_dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
        compared = _values_of([one.name for one in _fields_of(defined) if one.compare])
        methods: dict[str, object] = {"__repr__": _repr, "__eq__": _equality(compared)}
        initializer = _Initializer(defined, is_frozen=frozen)
        methods |= {"__init__": initializer.first_init, "__signature__": initializer}
        if frozen:
            methods |= _frozen_methods(defined)
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
        for name, method in methods.items():
            if name not in own:
                setattr(defined, name, method)
        # A class that defines `__eq__` has None as `__hash__`, unless it defines that too.
        if own.get("__hash__") is None:
            type.__setattr__(defined, "__hash__", _hash(compared) if frozen else None)
        return defined

    return define


def _fields_of(cls: type[object]) -> "tuple[Field[object], ...]":
    return fields(cast("type[_Dataclass]", cls))


def _values_of(names: Sequence[str]) -> Callable[[object], tuple[object, ...]]:
    """Return a function that returns the values of some fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


@recursive_repr()
def _repr(self: object) -> str:
    shown = [f"{one.name}={getattr(self, one.name)!r}" for one in _fields_of(type(self)) if one.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _equality(compared: Callable[[object], tuple[object, ...]]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:  # noqa: N807 - becomes a method
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    return __eq__


def _hash(compared: Callable[[object], tuple[object, ...]]) -> Callable[[object], int]:
    return lambda self: hash(compared(self))


def _frozen_methods(cls: type[object]) -> dict[str, object]:
    names = frozenset(one.name for one in _fields_of(cls))

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807 - becomes a method
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807 - becomes a method
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: object) -> list[object]:
    return [getattr(self, one.name) for one in _fields_of(type(self))]


def _set_state(self: object, state: list[object]) -> None:
    for one, value in zip(_fields_of(type(self)), state, strict=True):
        object.__setattr__(self, one.name, value)


class _Initializer:
    """Compiles the `__init__` of a class when it is first needed, for an instance or for the signature."""

    def __init__(self, cls: type[object], *, is_frozen: bool) -> None:
        self._cls, self._is_frozen = cls, is_frozen

        def __init__(instance: object, *args: object, **values: object) -> None:  # noqa: N807 - becomes a method
            self.compiled(instance, *args, **values)

        self.first_init = __init__

    @cached_property
    def compiled(self) -> Callable[..., None]:
        """The compiled method, which from now on is that of the class."""
        init = _compiled_init(self._cls, is_frozen=self._is_frozen)
        type.__setattr__(self._cls, "__init__", init)
        return init

    def __get__(self, instance: object, owner: type[object]) -> "Signature":
        """Return the signature of the class, as its `__signature__`."""
        from inspect import signature  # noqa: PLC0415 - nothing else here needs it

        if owner.__init__ not in {self.compiled, self.first_init}:
            raise AttributeError(f"{owner.__name__} has an __init__ of its own")
        found = signature(self.compiled)
        return found.replace(parameters=[*found.parameters.values()][1:])


def _compiled_init(cls: type[object], *, is_frozen: bool) -> Callable[..., None]:
    all_fields = _fields_of(cls)
    given = [one for one in all_fields if one.init]
    names: dict[str, object] = {"_missing": MISSING, "_set": object.__setattr__}
    lines: list[str] = []
    for one in all_fields:
        name, value = one.name, one.name
        if one.default_factory is not MISSING:
            names[f"_make_{name}"] = one.default_factory
            value = f"_make_{name}()" + (f" if {name} is _missing else {name}" if one.init else "")
        elif one.default is not MISSING:
            names[f"_default_{name}"] = one.default
            value = name if one.init else f"_default_{name}"
        elif not one.init:
            continue
        if is_frozen and isinstance(slot := cls.__dict__.get(name), MemberDescriptorType):
            # The descriptor of a slot is faster than `object.__setattr__`.
            names[f"_set_{name}"] = slot.__set__
            lines.append(f" _set_{name}(self, {value})")
        else:
            lines.append(f" _set(self, {name!r}, {value})" if is_frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    positional = [_parameter(one) for one in given if not one.kw_only]
    keywords = [_parameter(one) for one in given if one.kw_only]
    parameters = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({parameters}):\n" + "\n".join(lines or [" pass"]), names)  # noqa: S102 - field names only
    init = cast("Callable[..., None]", names["__init__"])
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {one.name: one.type for one in given} | {"return": None}
    return init


def filled_fields_reader(paths: Mapping[str, str], optional: Container[str]) -> Callable[[object], dict[str, object]]:
    """Return a function that returns attributes of a value by key, without optional ones that are None or `()`."""
    lines = ["def read(value):", " out = {}"]
    for key, path in paths.items():
        if key in optional:
            lines += [f" one = value.{path}", f" if one is not None and one is not _empty: out[{key!r}] = one"]
        else:
            lines.append(f" out[{key!r}] = value.{path}")
    names: dict[str, object] = {"_empty": ()}  # of which Python has only one, and a comparison may call a method
    exec("\n".join([*lines, " return out"]), names)  # noqa: S102 - field names only
    return cast("Callable[[object], dict[str, object]]", names["read"])


def _parameter(one: "Field[object]") -> str:
    if one.default_factory is not MISSING:
        return f"{one.name}=_missing"
    return one.name if one.default is MISSING else f"{one.name}=_default_{one.name}"
