"""``mount.sessionfs STORE DIR [-sfnv] [-o OPTS]``: what mount(8), fstab and systemd call.

Linked as ``/sbin/mount.sessionfs`` it serves ``mount -t sessionfs``, as ``/sbin/mount.fuse.sessionfs`` also
``mount -t fuse.sessionfs``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sessionfs.cli.exit_codes import DONE, FAILED, USAGE

# Words for mount(8), systemd or the kernel's generic layer; they say nothing to this filesystem.
_DROPPED = frozenset(
    {
        "auto",
        "noauto",
        "user",
        "users",
        "nouser",
        "owner",
        "group",
        "_netdev",
        "nofail",
        "defaults",
        "rw",
        "async",
        "sync",
        "dirsync",
        "atime",
        "noatime",
        "relatime",
        "norelatime",
        "strictatime",
        "diratime",
        "nodiratime",
        "lazytime",
        "nolazytime",
        "suid",
        "dev",
        "exec",
        "silent",
        "loud",
        "nomand",
        "mand",
        "_rnetdev",
    }
)
_DROPPED_PREFIXES = ("x-", "X-", "comment=", "uhelper=", "helper=", "context=")
# Flags of mount(8)'s helper interface. Source: mount(8), EXTERNAL HELPERS.
_SILENT_FLAGS = "snv"


@dataclass(frozen=True, slots=True)
class MountCall:
    """What mount(8) asked for.

    Attributes:
        store: First argument.
        directory: Second argument.
        options: After ``-o``, without the words that mean nothing here.
        fake: ``-f``: check, and mount nothing.
    """

    store: str
    directory: str
    options: str
    fake: bool


def parse(arguments: Sequence[str]) -> MountCall:
    """Read the helper's arguments.

    Raises:
        ValueError: They are not those of a mount helper.
    """
    places: list[str] = []
    options: list[str] = []
    fake = False
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument in {"-o", "-t", "-N"}:
            if not rest:
                raise ValueError(f"{argument} needs a value")
            value = rest.pop(0)
            if argument == "-o":
                options.extend(value.split(","))
        elif argument.startswith("-o"):
            options.extend(argument[2:].split(","))
        elif argument.startswith("-") and len(argument) > 1:
            unknown = set(argument[1:]) - set(_SILENT_FLAGS) - {"f"}
            if unknown:
                raise ValueError(f"unknown flag -{min(unknown)}")
            fake = fake or "f" in argument
        else:
            places.append(argument)
    if len(places) != 2:  # noqa: PLR2004 - STORE and DIR
        raise ValueError("a store and a directory are needed")
    return MountCall(places[0], places[1], ",".join(translate(options)), fake)


def translate(options: Sequence[str]) -> list[str]:
    """Leave out what means nothing to this filesystem.

    Args:
        options: One option each.
    """
    return [
        option
        for option in options
        if option and option not in _DROPPED and not option.startswith(_DROPPED_PREFIXES)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the helper.

    Returns:
        The exit code, for mount(8): 0, or the command's own.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        call = parse(given)
    except ValueError as problem:
        print(
            f"mount.sessionfs: {problem} (usage: mount.sessionfs STORE DIR [-sfnv] [-o OPTIONS])",
            file=sys.stderr,
        )
        return USAGE
    from sessionfs.cli.exit_codes import exit_code_of  # noqa: PLC0415
    from sessionfs.cli.mount_commands.mount_cmd import build_request, run_request, split_options  # noqa: PLC0415
    from sessionfs.cli.output import print_error  # noqa: PLC0415
    from sessionfs.model.errors import SessionFSError  # noqa: PLC0415

    try:
        settings, fuse_options = split_options(call.options)
        request = build_request(call.store, call.directory, settings, fuse_options, None)
        return DONE if call.fake else run_request(request, foreground=False)
    except SessionFSError as error:
        print_error(error)
        return exit_code_of(error)
    except KeyboardInterrupt:
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
