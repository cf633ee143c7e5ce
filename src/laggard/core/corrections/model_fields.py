"""Fields of pydantic models, found by key paths of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, get_args, get_origin

from laggard.core.edits import KeyPath, YamlValue

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


def find_models_at(
    model: type[BaseModel], location: tuple[str | int, ...]
) -> list[type[BaseModel]]:
    """Return the models that can be at a pydantic location: several within a union."""
    models = _unwrap_root(model)
    for part in location:
        fields = list(_find_fields(models, part))
        if fields:
            models = [inner for field in fields for inner in find_inner_models(field.annotation)]
        else:
            models = [
                each for each in models if part == each.__name__ or part in _list_name_values(each)
            ] or models
    return models


def list_examples_at(
    model: type[BaseModel], location: tuple[str | int, ...]
) -> Iterator[YamlValue]:
    """Yield values that are accepted at a pydantic location: examples, and the field's default."""
    for at in range(len(location) - 1, -1, -1):
        field = next(_find_fields(find_models_at(model, location[:at]), location[at]), None)
        if field is not None:
            entry = any(isinstance(part, int) for part in location[at + 1 :])
            yield from _list_entry_examples(field.annotation) if entry else _list_examples(field)
            return


def list_field_names(model: type[BaseModel]) -> list[str]:
    """Return the keys of a model, as written in files."""
    return [field.alias or name for name, field in model.model_fields.items()]


def list_places(model: type[BaseModel], name: str, at: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the key paths at which a model has the key `name`; 0 stands for any entry of a list."""
    if name in list_field_names(model) and at:
        yield (*at, name)
    for key, field in model.model_fields.items():
        below = (*at, field.alias or key, *((0,) if _is_list(field.annotation) else ()))
        for inner in find_inner_models(field.annotation):
            yield from list_places(inner, name, below)


def find_inner_models(annotation: object) -> list[type[BaseModel]]:
    """Return the models within a type."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in find_inner_models(argument)]


def _find_fields(models: list[type[BaseModel]], part: str | int) -> Iterator[FieldInfo]:
    for each in models:
        for name, field in each.model_fields.items():
            if part in (name, field.alias):
                yield field


def _list_examples(field: FieldInfo) -> Iterator[YamlValue]:
    """Yield values that a field accepts: its examples, those of its type, its default."""
    yield from field.examples or ()
    for metadata in field.metadata:
        yield from _list_examples_of_type(metadata)
    if isinstance(field.default, str | int | float):
        yield field.default
    yield from _list_type_examples(field.annotation)


def _list_entry_examples(annotation: object) -> Iterator[YamlValue]:
    """Yield values that are accepted as an entry of a list."""
    for argument in get_args(annotation):
        if get_origin(annotation) is tuple:
            yield from _list_type_examples(argument)
        else:
            yield from _list_entry_examples(argument)


def _unwrap_root(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models of a file's entries if its root is a list or a mapping of any keys."""
    from pydantic import RootModel

    if issubclass(model, RootModel):
        return find_inner_models(model.model_fields["root"].annotation)
    return [model]


def _list_name_values(model: type[BaseModel]) -> tuple[object, ...]:
    """Return the values of `name` that select this model within a union."""
    name = model.model_fields.get("name")
    return get_args(name.annotation) if name is not None else ()


def _is_list(annotation: object) -> bool:
    return get_origin(annotation) in (tuple, list) or any(
        _is_list(argument) for argument in get_args(annotation)
    )


def _list_type_examples(annotation: object) -> Iterator[YamlValue]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from arguments
    elif origin is Annotated:
        for metadata in arguments[1:]:
            yield from _list_examples_of_type(metadata)
        yield from _list_type_examples(arguments[0])
    elif annotation is int:
        yield from (1, 2, 10)
    elif annotation is bool:
        yield False
    elif origin not in (dict, tuple):
        for argument in arguments:
            yield from _list_type_examples(argument)


def _list_examples_of_type(metadata: object) -> Iterator[YamlValue]:
    schema = getattr(metadata, "json_schema", None)
    if isinstance(schema, dict):
        yield from schema.get("examples", ())
    yield from getattr(metadata, "examples", None) or getattr(metadata, "names", None) or ()
