"""What a model's call comes down to: our actions, and what of their outcome the model wants to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pydantic

from engine.desktop.actions import Action
from portal.errors import Malformed

_ACTION: pydantic.TypeAdapter[Action] = pydantic.TypeAdapter(Action)


@dataclass(frozen=True)
class Plan:
    """`size` is the picture that places are pixels of. `region` (of that picture) asks for that part of the screen, enlarged, in place of the whole."""

    actions: list[Action] = field(default_factory=list)
    size: tuple[int, int] | None = None
    region: tuple[int, int, int, int] | None = None
    wants_cursor: bool = False


def action(name: str, **fields: Any) -> Action:
    """One of our actions; fields that are None count as absent. Raises Malformed, which names the field."""
    return action_of({"action": name, **{key: value for key, value in fields.items() if value is not None}})


def action_of(planned: dict[str, Any]) -> Action:
    """An object with `action` as one of our actions. Raises Malformed, which names the field."""
    try:
        return _ACTION.validate_python(planned)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise Malformed(f"{planned.get('action')}{'.' if where else ''}{where[:60]}: {first['msg'][:200]}") from None


def known(given: dict[str, Any], what: str, *names: str) -> None:
    """Refuse what would otherwise be passed over in silence. Raises Malformed."""
    unknown = sorted(str(name) for name in set(given) - set(names))
    if unknown:
        raise Malformed(f"{what} has no {unknown[0][:40]!r}; it has {', '.join(names) or 'nothing'}")


def number(given: dict[str, Any], name: str, low: float, high: float, whole: bool = False) -> float:
    """A number of a model's call. Raises Malformed."""
    value = given.get(name)
    right = isinstance(value, int) if whole else isinstance(value, int | float)
    if not right or isinstance(value, bool) or not low <= value <= high:  # type: ignore[operator]
        raise Malformed(f"{name} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}")
    return value  # type: ignore[return-value]
