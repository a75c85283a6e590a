"""The text of docs/CONFIGURATION.md, from the settings, the commands and the exit codes themselves.

``python -m sessionfs.cli.reference_page > docs/CONFIGURATION.md`` brings it up to date; a test says when to.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator

import click
import msgspec

from sessionfs.cli.exit_codes import MEANINGS
from sessionfs.cli.main import main as command_line
from sessionfs.model import settings

_HEAD = """\
# Configuration and command line

This page is made by `python -m sessionfs.cli.reference_page`; change the program, not the page.

## Where a setting comes from

In this order, the first that names it counts:

1. a flag of `sessionfs mount` (`--read-only`), or `-o name=value`, which is also the form in `/etc/fstab`;
2. the environment: `SESSIONFS_` and the name in capitals, as `SESSIONFS_UPLOAD_DELAY_SECONDS=0.5`;
3. a line of the settings file, `name = value` in TOML: `--config FILE`, else `$SESSIONFS_CONFIG`, else
   `$XDG_CONFIG_HOME/sessionfs/sessionfs.toml` (`~/.config` without that variable);
4. the default.

An unknown name is refused with the nearest known one. Lists are TOML arrays in the file, and separated by commas in
the environment.

Secrets are no settings and are never in the file, in an argument or in a log: `SESSIONFS_ACCESS_KEY_ID` and
`SESSIONFS_SECRET_ACCESS_KEY`, else the usual AWS chain (environment, profile, container, instance).

STORE is a URL (`s3://BUCKET[/PREFIX]?endpoint=URL&region=R`, `gs://BUCKET[/PREFIX]`, `file:///DIR`), a directory, or a file ending in
`.json` of the form `{"backend": "local"}` or `{"backend": "s3", "bucket": ..., "endpoint": ..., "prefix": ...,
"region": ...}`.
"""

_COMPONENTS = (
    ("The mount", settings.FilesystemSettings),
    ("Uploads and fetches", settings.ReplicationSettings),
    ("Places and the daemon", settings.MountSettings),
)


def page() -> str:
    """Give the whole page."""
    parts = [_HEAD, "## Settings\n"]
    for title, kind in _COMPONENTS:
        parts += [f"### {title}\n", "\n".join(_settings_table(kind)) + "\n"]
    parts += ["## Commands\n", _COMMANDS_HEAD]
    parts += ["\n".join(_command_section(name)) + "\n" for name in sorted(command_line.commands)]
    parts += ["## Exit codes\n", "| code | meaning |\n|---|---|"]
    parts += [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(parts) + "\n"


_COMMANDS_HEAD = """\
`sessionfs --help` and `sessionfs COMMAND --help` say the same. `--debug` anywhere shows where an error came from.
Completion for bash: `eval "$(_SESSIONFS_COMPLETE=bash_source sessionfs)"`; `zsh_source` and `fish_source` for the others.

`mount.sessionfs STORE DIR [-sfnv] [-o OPTIONS]` is what mount(8) calls; link it as `/sbin/mount.sessionfs` for
`mount -t sessionfs` and for lines of `/etc/fstab` such as

    s3://bucket?region=eu-central-1  /srv/sessions  sessionfs  _netdev,nofail,allow_other,upload_delay_seconds=2  0  0
"""


def _settings_table(kind: type[msgspec.Struct]) -> Iterator[str]:
    meanings = dict(_attributes(kind.__doc__ or ""))
    yield "| setting | default | values | meaning |"
    yield "|---|---|---|---|"
    for field in msgspec.structs.fields(kind):
        yield f"| `{field.name}` | {_shown(field.default)} | {_values(field.type)} | {meanings[field.name]} |"


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Give each line of a docstring's ``Attributes`` section, continuation lines joined."""
    section = docstring.partition("Attributes:\n")[2]
    for match in re.finditer(r"^ {8}(\w+): (.+(?:\n {12,}.+)*)", section, re.MULTILINE):
        text = " ".join(match[2].split()).replace("``", "`").replace("|", "\\|")
        yield match[1], text


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ", ".join(f"`{item}`" for item in default) or "none"
    if isinstance(default, bool):
        return "true" if default else "false"
    if isinstance(default, str):
        # A bar would end the table's cell.
        return "`{}`".format(default.replace("|", "\\|")) if default else "none"
    return f"{default:,}" if isinstance(default, int) else f"{default}"


def _values(kind: object) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(kind))
    if kind is bool:
        return "true, false"
    if typing.get_origin(kind) is typing.Annotated:
        _base, meta = typing.get_args(kind)
        return _range_text(meta)
    return "list" if typing.get_origin(kind) is tuple else "text"


def _range_text(meta: msgspec.Meta) -> str:
    if meta.pattern is not None:
        return "`" + meta.pattern.strip("^$()").replace("|", "`, `") + "`"
    if meta.ge is None:
        return f"above {meta.gt:,}" if meta.le is None else f"above {meta.gt:,}, at most {meta.le:,}"
    return f"{meta.ge:,} or more" if meta.le is None else f"{meta.ge:,} to {meta.le:,}"


def _command_section(name: str) -> Iterator[str]:
    command = command_line.commands[name]
    arguments = " ".join(
        parameter.make_metavar(click.Context(command))
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    )
    yield f"### `sessionfs {name} {arguments}`\n"
    yield "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        yield "\n| option | meaning |\n|---|---|"
    for option in options:
        spelled = ", ".join(f"`{opt}`" for opt in option.opts)
        value = "" if option.is_flag else f" `{_metavar(option, command)}`"
        yield f"| {spelled}{value} | {' '.join((option.help or '').split())} |"


def _metavar(option: click.Option, command: click.Command) -> str:
    # A bar would end the table's cell.
    return option.make_metavar(click.Context(command)).replace("|", ", ").strip("[]")


if __name__ == "__main__":
    sys.stdout.write(page())
