"""A desktop as its programs tell of it: a list of nodes, each after its parent, checked and bounded: a workspace may tell anything.

Flat, so that nothing here recurses.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import pydantic

MOST_NODES = 5000
DEFAULT_NODES = 2000
MOST_TEXT = 2000
_MOST_DEPTH = 64

_NOT_PLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_Whole = Annotated[int, pydantic.Field(ge=-(1 << 31), le=1 << 31)]
_Text = Annotated[str, pydantic.Field(max_length=MOST_TEXT)]
_Short = Annotated[str, pydantic.Field(max_length=200)]
_Figure = Annotated[float, pydantic.Field(allow_inf_nan=False)]


class Node(pydantic.BaseModel):
    """One thing on the desktop. `parent`: its place in the list, None for the desktop itself. `box`: x, y, width, height in pixels of the screen,
    for what is showing. `children`: how many there are, where they were not read. `actions`: name, description, keys of each."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore")

    parent: Annotated[int, pydantic.Field(ge=0)] | None
    role: Annotated[str, pydantic.Field(max_length=60)]
    name: _Text
    states: Annotated[list[Annotated[str, pydantic.Field(pattern="^[a-z-]{1,30}$")]], pydantic.Field(max_length=64)]
    description: _Text = ""
    text: _Text = ""
    box: Annotated[list[_Whole], pydantic.Field(min_length=4, max_length=4)] | None = None
    attributes: Annotated[dict[Annotated[str, pydantic.Field(max_length=60)], _Short], pydantic.Field(max_length=30)] = {}
    value: Annotated[dict[Annotated[str, pydantic.Field(max_length=30)], _Figure], pydantic.Field(max_length=4)] = {}
    actions: Annotated[list[Annotated[list[_Short], pydantic.Field(min_length=3, max_length=3)]], pydantic.Field(max_length=20)] = []
    image: bool = False
    selection: bool = False
    children: Annotated[int, pydantic.Field(ge=0)] | None = None


class Tree(pydantic.BaseModel):
    """`nodes`, the desktop first and parents before their children, which are in order. `truncated`: there is more; `silent` programs did not answer."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore")

    nodes: Annotated[list[Node], pydantic.Field(min_length=1, max_length=MOST_NODES)]
    truncated: bool
    silent: Annotated[int, pydantic.Field(ge=0)]

    def public(self) -> dict[str, Any]:
        """As the API has it: what is empty is left out."""
        nodes = [{"parent": node.parent, **node.model_dump(exclude_defaults=True)} for node in self.nodes]
        return {"nodes": nodes, "truncated": self.truncated, "silent": self.silent}


def parsed(text: bytes) -> Tree:
    """The tree that a workspace told, checked. Raises ValueError."""
    tree = Tree.model_validate_json(text)
    depths: list[int] = []
    for number, node in enumerate(tree.nodes):
        if (node.parent is None) != (number == 0) or (node.parent is not None and node.parent >= number):
            raise ValueError(f"node {number} has no parent before it")
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
        node.name, node.text, node.description = _plain(node.name), _plain(node.text), _plain(node.description)
    if max(depths) > _MOST_DEPTH:
        raise ValueError("the tree is too deep")
    return tree


def _plain(text: str) -> str:
    """Without control characters and halves of surrogate pairs."""
    return _NOT_PLAIN.sub("", text)
