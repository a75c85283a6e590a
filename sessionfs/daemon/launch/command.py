"""How one of our modules is run in a fresh interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import sessionfs


def module_command(module: str, *arguments: str) -> list[str]:
    """Give the command that runs one of our modules in a fresh interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the environment in which a fresh interpreter finds this package, wherever it was imported from."""
    parent = os.path.dirname(os.path.dirname(os.path.abspath(sessionfs.__file__)))
    known = environment.get("PYTHONPATH", "")
    if os.path.basename(parent) in {"site-packages", "dist-packages"} or parent in known.split(os.pathsep):
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (parent, known)))}
