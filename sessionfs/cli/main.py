"""The command ``sessionfs``: its commands, and what happens to their errors.

Every error of ours is one line on standard error and an exit code of ``exit_codes``; ``--debug`` shows where it came from.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import sessionfs
from sessionfs.cli import exit_codes
from sessionfs.cli.commands.bench_cmd import bench
from sessionfs.cli.commands.diff_cmd import diff
from sessionfs.cli.commands.doctor_cmd import doctor
from sessionfs.cli.commands.fork_cmd import fork
from sessionfs.cli.commands.gc_cmd import gc
from sessionfs.cli.commands.generations_cmd import generations
from sessionfs.cli.commands.log_cmd import log
from sessionfs.cli.commands.ls_cmd import ls
from sessionfs.cli.commands.migrate_cmd import migrate
from sessionfs.cli.commands.restore_cmd import restore
from sessionfs.cli.commands.verify_cmd import verify
from sessionfs.cli.mount_commands.claim_cmd import claim
from sessionfs.cli.mount_commands.conflicts_cmd import conflicts
from sessionfs.cli.mount_commands.events_cmd import events
from sessionfs.cli.mount_commands.mount_cmd import mount
from sessionfs.cli.mount_commands.release_cmd import release
from sessionfs.cli.mount_commands.retry_cmd import retry
from sessionfs.cli.mount_commands.snapshot_cmd import snapshot
from sessionfs.cli.mount_commands.status_cmd import status
from sessionfs.cli.mount_commands.umount_cmd import umount
from sessionfs.cli.output import one_line, print_error
from sessionfs.model.errors import SessionFSError

_EPILOG = "Exit codes: 0 done, 1 failed, 2 usage, 3 store, 4 bytes left behind, 5 owned elsewhere, 6 corrupt, 7 format."


class CommandLine(click.Group):
    """A group whose errors are one line each, and whose help names commands by what they are about."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under headings."""
        del ctx
        width = max((len(name) for name in self.commands), default=0)
        limit = formatter.width - width - 6
        for heading, commands in _GROUPS:
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        ((command.name or "").ljust(width), command.get_short_help_str(limit))
                        for command in commands
                    ]
                )

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; the process ends with the documented exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        given = list(sys.argv[1:] if args is None else args)
        arguments = [argument for argument in given if argument != "--debug"]  # wherever it stands
        try:
            result = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
        except Exception as problem:
            if "--debug" in given and not isinstance(problem, click.ClickException):
                raise
            _end_with(problem)
        sys.exit(result if isinstance(result, int) else exit_codes.DONE)


def _end_with(problem: Exception) -> NoReturn:
    """Say what went wrong and end the process."""
    code = exit_codes.FAILED
    if isinstance(problem, SessionFSError):
        print_error(problem)
        code = exit_codes.exit_code_of(problem)
    elif isinstance(problem, click.Abort):
        code = exit_codes.INTERRUPTED
    elif isinstance(problem, click.UsageError):
        path = problem.ctx.command_path if problem.ctx else "sessionfs"
        click.echo(
            f"sessionfs: {one_line(problem.format_message()).rstrip('.')} (see: {path} --help)", err=True
        )
        code = exit_codes.USAGE
    elif isinstance(problem, click.ClickException):
        click.echo(f"sessionfs: {one_line(problem.format_message())}", err=True)
    elif isinstance(problem, OSError) and problem.errno == errno.EPIPE:
        # The reader went away; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif isinstance(problem, OSError) and problem.strerror:
        named = f"{problem.filename}: " if problem.filename else ""
        click.echo(f"sessionfs: {one_line(f'{named}{problem.strerror}')}", err=True)
    else:
        click.echo(f"sessionfs: internal error: {one_line(repr(problem))} (--debug shows where)", err=True)
    sys.exit(code)


@click.group(cls=CommandLine, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sessionfs.__version__, prog_name="sessionfs", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def main(debug: bool) -> None:
    """Mount a bucket so that every agent session is an ordinary directory."""
    del debug  # taken from the arguments before they are parsed; here for the help


_GROUPS = (
    ("Mounts", (mount, umount, status, events, doctor)),
    ("Sessions of a mount", (snapshot, claim, release, conflicts, retry)),
    ("Stores", (ls, generations, diff, restore, fork, log, migrate, gc, verify, bench)),
)

for _heading, _commands in _GROUPS:
    for _command in _commands:
        main.add_command(_command)
