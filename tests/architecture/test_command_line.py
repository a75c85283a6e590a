"""Every command explains itself and is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from sessionfs.cli.main import main

from .source_files import ROOT


def _commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(group, click.Group):
        for name, command in sorted(group.commands.items()):
            yield from _commands(command, (*path, name))
    else:
        yield " ".join(path), group


COMMANDS = dict(_commands(main))


def test_the_commands_of_this_version_are_there() -> None:
    assert {"mount", "umount", "status", "ls", "doctor", "events", "retry", "conflicts"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_help(name: str) -> None:
    assert (COMMANDS[name].help or "").strip()
    result = CliRunner().invoke(main, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_has_help(name: str) -> None:
    silent = [
        option.name
        for option in COMMANDS[name].params
        if isinstance(option, click.Option) and not option.hidden and not (option.help or "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_documented(name: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(re.search(rf"\bsessionfs {name}\b", page.read_text(encoding="utf-8")) for page in pages)


@pytest.mark.parametrize("name", ["status", "ls", "doctor", "events", "conflicts"])
def test_a_command_that_reads_has_a_json_form(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)
