"""Who may import what: layers, third-party libraries, clocks and randomness."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from .source_files import ROOT, files_of_product, imported_modules, references

# Library -> the only places that may import it. The test kit may import any.
HOMES = {
    "boto3": ("sessionfs/stores/s3*",),
    "botocore": ("sessionfs/stores/s3*",),
    "s3transfer": (),
    "google": ("sessionfs/stores/gcs*",),
    "psycopg": ("sessionfs/sessions/catalogue/*",),
    "pyfuse3": ("sessionfs/filesystem/engine_pyfuse3*",),
    "zstandard": ("sessionfs/formats/*",),
    "xattr": ("sessionfs/stores/local_directory*", "sessionfs/working_copy/*"),
    "sqlite3": ("sessionfs/working_copy/*", "sessionfs/replication/*", "sessionfs/sessions/catalogue/*"),
    "click": ("sessionfs/cli/*",),
    "rich": ("sessionfs/cli/*",),
    "trio": (
        "sessionfs/replication/*",
        "sessionfs/filesystem/*",
        "sessionfs/sessions/*",
        "sessionfs/migration/*",
        "sessionfs/bench/*",
        "sessionfs/daemon/*",
        "sessionfs/cli/*",
    ),
}

CLOCKS_AND_RANDOMNESS = (
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "time.localtime",
    "time.gmtime",
    "time.ctime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "os.urandom",
    "os.getrandom",
    "random",
    "secrets",
    "uuid",
)
MAY_READ_CLOCKS = ("sessionfs/model/clock.py", "sessionfs/testing/*", "sessionfs/bench/*")


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_imported_only_where_it_lives(library: str) -> None:
    strays = [
        f"{file.path}:{line}"
        for file in files_of_product()
        if not any(fnmatch(file.path, place) for place in (*HOMES[library], "sessionfs/testing/*"))
        for line, module in imported_modules(file.tree)
        if module.partition(".")[0] == library
    ]
    assert strays == []


def test_only_the_clock_module_reads_clocks_and_randomness() -> None:
    strays = [
        f"{file.path}:{line} {name}"
        for file in files_of_product()
        if not any(fnmatch(file.path, place) for place in MAY_READ_CLOCKS)
        for line, name in clock_reads(file.tree)
    ]
    assert strays == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nnow = t.monotonic_ns",
        "from time import time_ns as now\nnow()",
        "from datetime import datetime, UTC\ndatetime.now(UTC)",
        "import datetime as dt\ndt.datetime.now()",
        "import random",
        "from random import Random",
        "def f():\n    from uuid import uuid4",
        "import os\nos.urandom(4)",
        "from os import urandom\nurandom(4)",
        "import secrets",
    ],
)
def test_the_clock_scan_sees(source: str) -> None:
    assert list(clock_reads(ast.parse(source))) != []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)",
        "from datetime import datetime, UTC\ndatetime.fromtimestamp(0, UTC)",
        "def f(clock):\n    return clock.random.time.time()",
    ],
)
def test_the_clock_scan_lets_pass(source: str) -> None:
    assert list(clock_reads(ast.parse(source))) == []


def clock_reads(tree: ast.Module) -> set[tuple[int, str]]:
    """Give the line and name of every use of a clock or of randomness, and every import of such a module."""
    return {
        (line, name)
        for found in (imported_modules(tree), references(tree))
        for line, name in found
        if any(name == banned or name.startswith(banned + ".") for banned in CLOCKS_AND_RANDOMNESS)
    }


def test_layers_import_only_downwards() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(tool), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
