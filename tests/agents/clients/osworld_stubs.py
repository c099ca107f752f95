"""OSWorld's evaluators as they are, getters and metrics, but for what some of their metrics need: torch by easyocr, OpenCV, librosa and more, a gigabyte of it.

In place of each of those packages is one whose names can be imported and not used: a metric that needs it fails, and says what for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

HEAVY = frozenset({
    "PyPDF2", "acoustid", "borb", "cv2", "easyocr", "fastdtw", "fitz", "formulas", "imagehash", "librosa", "mutagen", "odf", "pdfplumber", "pptx", "pypdf",
    "scipy", "skimage",
})  # fmt: skip


class _Absent(type):
    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError(f"{cls.__module__}.{cls.__name__} is left out of the tests' environment")


class _Module(types.ModuleType):
    """Every name of it is a class, since some are used as types; none can be called."""

    __path__: list[str] = []  # a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {"__module__": self.__name__})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in HEAVY:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def install() -> None:
    """Before the first import from desktop_env."""
    sys.meta_path.insert(0, _Finder())
