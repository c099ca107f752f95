"""Empty modules in place of OSWorld's evaluators, which need torch and a dozen more; `evaluate` knows no metric but `infeasible`."""

from __future__ import annotations

import sys
import types


def install() -> None:
    """Before the first import from desktop_env."""
    names = ("desktop_env.evaluators", "desktop_env.evaluators.metrics", "desktop_env.evaluators.getters", "desktop_env.evaluators.metrics.utils")
    for name in names:
        module = types.ModuleType(name)
        module.__path__ = []  # a package
        sys.modules[name] = module
    evaluators, metrics, getters, utils = (sys.modules[name] for name in names)
    evaluators.metrics, evaluators.getters = metrics, getters
    metrics.infeasible = None
    utils.compare_urls = lambda one, other: one == other
