"""What the documents name exists: commands, links and tests; and no file names a machine."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from .source_files import ROOT, files_of_tests

FIRST_COMMANDS = ("scripts/up", "scripts/test")
SCRIPTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("scripts/*"), ROOT / ".ci/run"))
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"))
)

# Places that exist on one machine only; a word before the slash makes it part of something else.
MACHINE_PATHS = re.compile(rb"(?:^|[\s\"'`=(:,/])/(?:work|root|Users|opt/pypi|tmp/v)/", re.MULTILINE)
# Options of package clients that carry a registry's address, and private addresses.
REGISTRIES = re.compile(
    rb"--(?:extra-)?index-url|--trusted-host|--find-links|\bGOPROXY=|\bnpm_config_registry\b"
    rb"|\b(?:10\.\d+|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b"
)


@pytest.mark.parametrize("script", FIRST_COMMANDS)
def test_the_readme_starts_with_commands_that_exist(script: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_block = readme.split("```")[1]
    assert f"./{script}\n" in first_block
    assert script in SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_executable_and_says_what_it_does(script: str) -> None:
    lines = (ROOT / script).read_text(encoding="utf-8").splitlines()
    assert os.access(ROOT / script, os.X_OK)
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1].startswith("# ")
    assert any(line.startswith("set -") and "u" in line and "pipefail" in line for line in lines)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_documents_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not ((ROOT / page).parent / target).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/adr/")])
def test_every_test_that_a_document_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    known = {Path(file.path).stem for file in files_of_tests()} | {
        node.name
        for file in files_of_tests()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    named = set(re.findall(r"\btest_\w+", text))
    assert sorted(named - known) == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    here = Path(__file__).relative_to(ROOT).as_posix()
    found: list[str] = []
    for path in _project_files():
        if path == here:
            continue
        content = (ROOT / path).read_bytes()
        places = [*MACHINE_PATHS.finditer(content), *REGISTRIES.finditer(content)]
        found += [f"{path}: {place.group().decode(errors='replace').strip()}" for place in places]
        found += [f"{path}: this checkout's own path" for _ in [0] if _own_path() in content]
    assert found == []


def _own_path() -> bytes:
    return os.fsencode(ROOT) + b"/"


def _project_files() -> list[str]:
    """Give the tracked files and those that are about to be."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert names
    return sorted(name for name in set(names) if (ROOT / name).is_file())
