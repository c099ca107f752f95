"""The clipboard of this desktop under pyperclip's name, for commands of the OSWorld server."""

from pyautogui import PyAutoGUIException as PyperclipException
from pyautogui import _do

__all__ = ["PyperclipException", "copy", "paste"]


def copy(text):
    """Put a text there."""
    _do({"action": "set_clipboard", "text": str(text)})


def paste():
    """The text that is there."""
    return _do({"action": "get_clipboard"})[-1]["text"]
