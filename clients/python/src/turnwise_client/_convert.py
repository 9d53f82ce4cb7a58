"""Between JSON and annotated values: dataclasses, models of pydantic and structs of msgspec. None of these is imported here."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import sys
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

_TEXTS = (datetime.datetime, datetime.date, datetime.time)


def dump(value: Any) -> Any:
    """The value as JSON has it."""
    if value is None or isinstance(value, (str, int, float, bool)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, enum.Enum):
        return dump(value.value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(dump(key)): dump(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [dump(each) for each in value]
    if hasattr(value, "model_dump") and hasattr(type(value), "model_validate"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(type(value), "__struct_fields__"):
        return sys.modules["msgspec"].to_builtins(value)
    if isinstance(value, _TEXTS):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def load(annotation: Any, value: Any) -> Any:
    """The value that the annotation wants, if the annotation is of a known kind; otherwise the value as it is."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return load(arguments[0], value)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        rest = [each for each in arguments if each is not type(None)]
        return load(rest[0], value) if len(rest) == 1 else value
    if origin in (list, set, frozenset) and isinstance(value, list) and arguments:
        return origin(load(arguments[0], each) for each in value)
    if origin is tuple and isinstance(value, list):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(load(arguments[0], each) for each in value)
        if len(arguments) != len(value):
            raise ValueError(f"{len(value)} values in place of {len(arguments)}")
        return tuple(load(each, part) for each, part in zip(arguments, value))
    if origin is dict and isinstance(value, dict) and len(arguments) == 2:
        return {load(arguments[0], key): load(arguments[1], each) for key, each in value.items()}
    if not isinstance(annotation, type):
        return value
    validate: Any = getattr(annotation, "model_validate", None)
    if validate is not None:
        return validate(value)
    if dataclasses.is_dataclass(annotation) and isinstance(value, dict):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return annotation(**{name: load(hints.get(name), each) for name, each in value.items()})
    if hasattr(annotation, "__struct_fields__"):
        return sys.modules["msgspec"].convert(value, annotation)
    if issubclass(annotation, enum.Enum):
        return annotation(value)
    if issubclass(annotation, uuid.UUID) and isinstance(value, str):
        return annotation(value)
    if annotation in _TEXTS and isinstance(value, str):
        text = value[:-1] + "+00:00" if value.endswith("Z") else value
        return annotation.fromisoformat(text)
    return value


class Signature:
    """The arguments of a task's function, without the context."""

    def __init__(self, function: Callable[..., Any], context_type: type, other_type: type) -> None:
        self.signature = inspect.signature(function)
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except NameError:
            # An annotation whose name is known to type checkers only: no values are converted.
            hints = {}
        name = getattr(function, "__qualname__", repr(function))
        parameters = list(self.signature.parameters.values())
        first = parameters[0] if parameters else None
        self.takes_context = first is not None and _is(first, hints, context_type)
        if first is not None and _is(first, hints, other_type):
            raise TypeError(f"{name}: coroutine functions take an `AsyncContext`, others a `Context`")
        if self.takes_context:
            parameters = parameters[1:]
        if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters):
            raise TypeError(f"{name}: the arguments of a task have names; it cannot take positional ones only")
        self.signature = self.signature.replace(parameters=parameters)
        self.hints = hints

    def options(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The options of a job for these arguments. Raises `TypeError` if the function does not take them."""
        bound = self.signature.bind(*arguments, **named)
        options: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                options.update({key: dump(each) for key, each in value.items()})
            else:
                options[name] = dump(value)
        return options

    def arguments(self, options: Any) -> dict[str, Any]:
        """The arguments for a job's options. Raises `TypeError` or `ValueError` if the function does not take them."""
        if options is None:
            options = {}
        if not isinstance(options, dict):
            raise TypeError("the options are no object of named arguments")
        self.signature.bind(**options)
        return {name: load(self.hints.get(name), value) for name, value in options.items()}

    def result(self, value: Any) -> Any:
        return load(self.hints.get("return"), value)


def _is(parameter: inspect.Parameter, hints: dict[str, Any], kind: type) -> bool:
    """Whether a parameter is annotated as this class. The annotation may be a text whose name is known to type checkers only."""
    annotation = parameter.annotation
    return hints.get(parameter.name) is kind or isinstance(annotation, str) and annotation.split(".")[-1] == kind.__name__
