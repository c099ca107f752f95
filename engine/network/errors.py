"""The one error of this package that the engine's tree does not have."""

from __future__ import annotations

from typing import Literal

from engine.errors import Unavailable


class ConnectError(Unavailable):
    """No connection to a port inside a workspace. `code` is `refused` or `timeout`, on the descriptor socket too."""

    def __init__(self, message: str, code: Literal["refused", "timeout"]) -> None:
        super().__init__(message)
        self.code = code
