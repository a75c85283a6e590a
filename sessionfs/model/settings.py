"""Every setting, frozen, one class per component, units in the names.

Precedence: flag, environment (``SESSIONFS_<NAME>``), file (``sessionfs.toml``, flat), default. This module is
pure: it is given mappings and gives `Settings`; reading files and the environment belongs to the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from sessionfs.model.errors import SettingsError

ENVIRONMENT_PREFIX = "SESSIONFS_"
_MIB = 1 << 20

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]

DEFAULT_EXCLUDE_GLOBS = (
    "session.lock",
    "*.db-wal",
    "*.db-shm",
    "*.db-journal",
    ".sessionfs/**",
    ".sessionfs-new-*",
)


class FilesystemSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the mount answers.

    Attributes:
        cache_timeout_seconds: How long the kernel may keep names and attributes of a session written here.
        foreign_lag_seconds: How old a session that another host may write can be seen here.
        fetch_timeout_seconds: How long a program waits for bytes that are not here before EIO.
        fsync: ``local``: fsync is on this disk; ``bucket``: fsync is in the bucket.
        default_permissions: Let the kernel check permissions instead of the Core.
        allow_other: Let other users see the mount.
        read_only: Refuse every change.
        eager: Fetch a session whole before it is shown.
        prefetch: Fetch remote files in the background once a session was opened, small ones first.
        sessions: Only these sessions are shown; empty for all.
        policy: What a failed commit means for programs: ``degrade`` lets them go on, ``strict`` refuses opens for writing with EIO until
            a commit succeeds.
        turn_globs: Files in which a line that matches `turn_pattern` ends a turn: its write returns after a commit.
        turn_pattern: Regular expression for such a line.
        freeze_copy_bytes: A file longer than this that changes during a commit is copied at its beginning, with programs waiting.
    """

    cache_timeout_seconds: Seconds = 300.0
    foreign_lag_seconds: Seconds = 5.0
    fetch_timeout_seconds: Seconds = 30.0
    fsync: Literal["local", "bucket"] = "local"
    default_permissions: bool = False
    allow_other: bool = False
    read_only: bool = False
    eager: bool = False
    prefetch: bool = False
    sessions: tuple[str, ...] = ()
    policy: Literal["degrade", "strict"] = "degrade"
    turn_globs: tuple[str, ...] = ()
    turn_pattern: str = r'"type"\s*:\s*"turn.(?:end|ended|complete|completed)"'
    freeze_copy_bytes: Bytes = 1024 * _MIB


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How bytes reach the bucket, and come back.

    Attributes:
        upload_delay_seconds: A file is uploaded when it was quiet this long.
        max_upload_delay_seconds: A file is uploaded at the latest this long after it became owed.
        growth_bytes_per_second: A growing file's delay is at least its size divided by this.
        concurrent_uploads: Requests at once.
        upload_memory_bytes: Buffers of all uploads together.
        part_bytes: Length of one part of a multipart put.
        append_minimum_bytes: From this length on a grown object is extended by a server-side copy and a tail; the store's minimum part size.
        copy_minimum_bytes: From this length on known content is copied on the server instead of sent.
        retry_minimum_seconds: First back-off after a passing error.
        retry_maximum_seconds: Longest back-off.
        access_retry_seconds: How often a store that refuses us is asked again.
        sweep_interval_seconds: How often files that may still change are looked at.
        deletion_brake_files: A batch that deletes more files than this waits for a person.
        exclude_globs: Names that never leave this host (matched on the name, or on the path when it contains a slash).
        private_globs: Paths that are 0600 on a host that hydrates them.
        cache_limit_bytes: Evict clean files when the working copy is larger, or its disk is nearly full; 0 never evicts.
        single_host: Accept a store that cannot refuse a second writer.
        snapshot_interval_seconds: Sessions that changed are committed this often; 0 for never.
        keep_generations: Generations that ``gc`` keeps.
        recovery: What a host that hydrates takes over: ``live``, also what was uploaded after the last commit; ``committed``, only that
            commit. The end-of-turn rule sets ``committed`` for its session.
        at: What this mount hydrates: ``auto`` as the manifest says, ``live``, ``committed``, or the number of a generation (read-only).
        beat_interval_seconds: How often a daemon that owns sessions says that it lives.
        lease_seconds: How long a beat must stand still before another host may take over.
        immutable_globs: Files that never change once they are closed: uploaded at once, and trusted when a listing shows their length.
    """

    upload_delay_seconds: Seconds = 1.0
    max_upload_delay_seconds: Seconds = 10.0
    growth_bytes_per_second: Bytes = 512 << 10
    concurrent_uploads: Count = 16
    upload_memory_bytes: Bytes = 64 * _MIB
    part_bytes: Annotated[int, msgspec.Meta(ge=5 * _MIB, le=1024 * _MIB)] = 8 * _MIB
    append_minimum_bytes: Bytes = 5 * _MIB
    copy_minimum_bytes: Bytes = 1 * _MIB
    retry_minimum_seconds: Seconds = 0.5
    retry_maximum_seconds: Seconds = 60.0
    access_retry_seconds: Seconds = 60.0
    sweep_interval_seconds: Seconds = 30.0
    deletion_brake_files: Count = 1000
    exclude_globs: tuple[str, ...] = DEFAULT_EXCLUDE_GLOBS
    private_globs: tuple[str, ...] = ("vm/token",)
    cache_limit_bytes: Bytes = 0
    single_host: bool = False
    snapshot_interval_seconds: Seconds = 300.0
    keep_generations: Count = 20
    recovery: Literal["live", "committed"] = "live"
    at: Annotated[str, msgspec.Meta(pattern=r"^(auto|live|committed|[1-9][0-9]{0,9})$")] = "auto"
    beat_interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    lease_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    immutable_globs: tuple[str, ...] = ("blobs/??/*", "journal/*-[0-9][0-9][0-9].jsonl.zst")


class MountSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where things are and how the daemon ends.

    Attributes:
        store: URL of the store; "" for the embedded default.
        state_dir: Where working copies and journals live; "" for the default of the platform.
        shutdown_budget_seconds: How long SIGTERM may take to bring owed files away.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
    """

    store: str = ""
    state_dir: str = ""
    shutdown_budget_seconds: Seconds = 10.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings, by component; each component is given only its own."""

    filesystem: FilesystemSettings = FilesystemSettings()
    replication: ReplicationSettings = ReplicationSettings()
    mount: MountSettings = MountSettings()


_COMPONENTS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("filesystem", FilesystemSettings),
    ("replication", ReplicationSettings),
    ("mount", MountSettings),
)

NAMES: dict[str, str] = {
    field: component for component, kind in _COMPONENTS for field in kind.__struct_fields__
}
"""Component of each setting's name."""

# Read elsewhere under the same prefix: secrets and switches of tests are no settings.
NOT_SETTINGS = frozenset(
    {"ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "CONFIG", "REQUIRE", "TEST_S3_URL", "SUITES"}
)


def resolve(
    *,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    file_name: str = "sessionfs.toml",
) -> Settings:
    """Merge the four places a setting may come from.

    Args:
        flags: Values by name; None means not given.
        environment: The process's environment.
        file: The parsed settings file, flat.
        file_name: For messages.

    Raises:
        SettingsError: An unknown name (with the nearest known one), or a value out of range (with the range).
    """
    merged: dict[str, Any] = {}
    for name, value in file.items():
        merged[_known(name, f"in {file_name}")] = (value, f"{name} in {file_name}")
    for variable, text in environment.items():
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name == variable or name in NOT_SETTINGS or name.startswith("TEST_"):
            continue
        merged[_known(name.lower(), f"as {variable}")] = (text, variable)
    for name, value in flags.items():
        if value is not None:
            merged[_known(name, "as a flag")] = (value, f"--{name.replace('_', '-')}")
    parts: dict[str, msgspec.Struct] = {}
    for component, kind in _COMPONENTS:
        own = {name: pair for name, pair in merged.items() if NAMES[name] == component}
        parts[component] = kind(**{name: _convert(kind, name, *pair) for name, pair in own.items()})
    return msgspec.convert(parts, Settings, from_attributes=True)


def _known(name: str, where: str) -> str:
    if name in NAMES:
        return name
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]}?" if near else "see docs/CONFIGURATION.md"
    raise SettingsError(f"unknown setting {name} {where}", remedy=hint)


def _convert(kind: type[msgspec.Struct], name: str, value: Any, shown: str) -> Any:
    wanted = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    if isinstance(value, str) and NAMES[name] and "tuple" in str(wanted):
        value = [part for part in value.split(",") if part]
    try:
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError as problem:
        raise SettingsError(f"{shown}: {problem}") from None
