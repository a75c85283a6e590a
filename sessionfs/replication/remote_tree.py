"""A session as the bucket has it: one manifest, one listing, and a HEAD for what neither describes.

Order: the manifest first, then the listing, so that the listing is never older. Rules:

* A live object that the manifest names with its token is described by the manifest; any other by its own metadata.
  An object written about when the manifest was is asked too: a copy onto itself (``chmod``) may keep its token.
* Recovery ``live``: a path of the manifest whose live object is gone was removed. A path that never had one reads from
  ``.objects/``. Recovery ``committed``: what is gone reads from ``.objects/`` too.
* A key that no path can name, or beside which another makes its path a directory, is reported and never breaks the rest.
* Listings carry no type: nothing is shown before it was described.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats import object_metadata
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import DEFAULT_DIRECTORY_MODE, FileAttributes
from sessionfs.model import keys
from sessionfs.model.errors import ObjectNotFoundError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat, Token
from sessionfs.working_copy.exclusions import Exclusions

CONCURRENT_HEADS = 64
MAX_TARGET_BYTES = 4095
_PRIVATE_MODE = stat.S_IFREG | 0o600
_MARGIN_NS = 1_000_000_000
"""Times of a store are whole seconds on some."""


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """One path of a session in the bucket.

    Attributes:
        path: Path inside the session; empty for its root.
        key: Of the object that holds its bytes, target or attributes; "" for a directory without a marker.
        mode: As this host shows it: `attributes` says what the bucket keeps.
        attributes: As the bucket keeps them.
        size_bytes: Length of the object.
        sha256: Of the object, "" when unknown.
        token: Of the object.
        write_id: Of the attempt that wrote it, "" when unknown.
        lineage: As in the metadata, "" when unknown.
        xattrs: Extended attributes, None when no manifest tells.
        target: A symlink's text.
        link_group: Equal for all names of one file, 0 for one name.
    """

    path: bytes
    key: str
    mode: int
    attributes: FileAttributes
    size_bytes: int = 0
    sha256: str = ""
    token: str = ""
    write_id: str = ""
    lineage: str = ""
    xattrs: dict[bytes, bytes] | None = None
    target: bytes = b""
    link_group: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Skipped:
    """An object that cannot be shown.

    Attributes:
        key: Its key.
        reason: Why, in a few words.
    """

    key: str
    reason: str


@dataclass(slots=True)
class Survey:
    """What one manifest and one listing say.

    Attributes:
        session: The session.
        manifest: The newest manifest, None for none.
        manifest_token: Its token, "" for none.
        listed: Every key below the session, whatever it is.
        live: Live objects by path.
        implied: Directories that only have something below them.
        stored: Entries of the manifest without a live object, whose bytes are elsewhere.
        skipped: What cannot be shown.
        entries: Entries of the manifest by path.
        broken_groups: Link groups that are no longer one file.
        manifest_ns: The store's time of the manifest.
        newest_ns: The store's time of the newest object listed, 0 for none.
        manifest_unchanged: The manifest is the one the caller knows: it was not read again, and `manifest` is None.
    """

    session: SessionId
    manifest: Manifest | None
    manifest_token: str
    listed: dict[str, ObjectStat] = field(default_factory=dict)
    live: dict[bytes, ObjectStat] = field(default_factory=dict)
    implied: set[bytes] = field(default_factory=set)
    stored: dict[bytes, ManifestEntry] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    entries: dict[bytes, ManifestEntry] = field(default_factory=dict)
    broken_groups: set[int] = field(default_factory=set)
    manifest_ns: int = 0
    newest_ns: int = 0
    manifest_unchanged: bool = False

    @property
    def exists(self) -> bool:
        """Whether the session exists: something is listed, or a manifest says so."""
        named = self.manifest_unchanged or (self.manifest is not None and not self.manifest.removed)
        return named or bool(self.listed)

    @property
    def paths(self) -> list[bytes]:
        """Every path, directories before what is in them."""
        return sorted({b"", *self.live, *self.implied, *self.stored}, key=lambda path: path.split(b"/"))

    def has(self, path: bytes) -> bool:
        """Whether the session has a path."""
        return path == b"" or path in self.live or path in self.implied or path in self.stored

    def has_directory(self, path: bytes) -> bool:
        """Whether the session has a directory at a path."""
        live, kept = self.live.get(path), self.stored.get(path)
        marked = live is not None and live.key.endswith("/")
        return marked or path in self.implied or (kept is not None and stat.S_ISDIR(kept.mode))

    def named_by_manifest(self, path: bytes) -> ManifestEntry | None:
        """The manifest's entry for a live object, when it is of this very object."""
        entry, live = self.entries.get(path), self.live.get(path)
        same = (
            entry is not None
            and live is not None
            and entry.token == live.token
            and stat.S_ISDIR(entry.mode) == live.key.endswith("/")
        )
        return entry if same else None

    def needs_head(self, path: bytes) -> bool:
        """Whether a live object must be asked for its attributes."""
        return (
            self.named_by_manifest(path) is None
            or self.live[path].modified_ns + _MARGIN_NS >= self.manifest_ns
        )


@dataclass(frozen=True, slots=True)
class RemoteTree:
    """A whole session.

    Attributes:
        survey: What it was read from.
        entries: By path, directories before what is in them; the root is the first.
    """

    survey: Survey
    entries: tuple[RemoteEntry, ...]

    @property
    def skipped(self) -> list[Skipped]:
        """What cannot be shown."""
        return self.survey.skipped


class RemoteTreeReader:
    """Reads sessions from the bucket.

    Args:
        store: The bucket.
        exclusions: Names that are not hydrated.
        private_globs: Files that are 0600 on this host.
        owner: Who owns what another tool wrote (user, group).
    """

    def __init__(
        self,
        store: TrioStore,
        exclusions: Exclusions,
        *,
        private_globs: tuple[str, ...],
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._store = store
        self._exclusions = exclusions
        self._private = Exclusions(private_globs)
        self._owner = owner if owner is not None else (os.geteuid(), os.getegid())

    async def load(self, session: SessionId) -> RemoteTree | None:
        """Read a whole session; None when it does not exist.

        Raises:
            UnavailableError, AccessError: Nothing is known.
            CorruptDataError, UnsupportedFormatError: The manifest cannot be read.
        """
        survey = await self.survey(session)
        if not survey.exists:
            return None
        paths = await trio.to_thread.run_sync(lambda: survey.paths)
        described = await self.describe(survey, paths)
        return RemoteTree(survey, tuple(described[path] for path in paths if path in described))

    async def survey(self, session: SessionId, *, known_manifest: str = "") -> Survey:
        """Read the manifest and list the session; as `load`.

        Args:
            session: The session.
            known_manifest: Token of the manifest that need not be read again, "" for none.
        """
        survey = await self._manifest(session, known_manifest)
        objects, _ = await self._store.list_all(keys.session_prefix(session), whole_segments=False)
        survey.listed = {found.key: found for found in objects}
        survey.newest_ns = max((found.modified_ns for found in objects), default=0)
        # Large sessions take a while, and the loop serves others too.
        await trio.to_thread.run_sync(self._sort, survey)
        return survey

    async def describe(self, survey: Survey, paths: Iterable[bytes]) -> dict[bytes, RemoteEntry]:
        """Give entries for paths of a survey; one whose object has gone since is left out, and reported when it is no usable link."""
        found: dict[bytes, RemoteEntry] = {}

        async def one(path: bytes) -> None:
            entry = await self._entry(survey, path)
            if entry is not None:
                found[path] = entry

        await for_each(list(paths), one, limit=CONCURRENT_HEADS)
        return found

    async def head_entry(self, key: str, path: bytes, previous: ManifestEntry | None) -> RemoteEntry | None:
        """Describe one live object by its metadata; None when there is none or it is a link that leads nowhere.

        Args:
            key: The live key.
            path: The path it names.
            previous: The manifest's entry for the path: its xattrs are kept when the content is the same.
        """
        found = await self._store.head(key, tries=READ_TRIES)
        if found is None:
            return None
        user = found.metadata.user if found.metadata else {}
        is_directory = key.endswith("/")
        attributes = object_metadata.decode_attributes(
            user, modified_ns=found.modified_ns, is_directory=is_directory
        )
        attributes = replace(
            attributes,
            uid=attributes.uid if "uid" in user else self._owner[0],
            gid=attributes.gid if "gid" in user else self._owner[1],
        )
        provenance = object_metadata.decode_provenance(user)
        same = previous is not None and (
            previous.token == found.token
            or (provenance.sha256 != "" and previous.sha256 == provenance.sha256)
        )
        entry = RemoteEntry(
            path=path,
            key=key,
            mode=self._shown_mode(path, attributes.mode),
            attributes=attributes,
            size_bytes=0 if is_directory else found.size_bytes,
            sha256=provenance.sha256,
            token=found.token,
            write_id=provenance.write_id,
            lineage=provenance.lineage,
            xattrs=dict(previous.xattrs) if same and previous is not None else None,
        )
        return await self._with_target(entry) if stat.S_ISLNK(entry.mode) else entry

    # --- the survey

    def _sort(self, survey: Survey) -> None:
        self._sort_keys(survey)
        self._sort_entries(survey)

    async def _manifest(self, session: SessionId, known_token: str) -> Survey:
        key = keys.manifest_key(session)
        if known_token:
            head = await self._store.head(key, tries=READ_TRIES)
            if head is not None and head.token == known_token:
                return Survey(
                    session, None, known_token, manifest_ns=head.modified_ns, manifest_unchanged=True
                )
        try:
            found, raw = await self._store.read_with_stat(key, tries=READ_TRIES)
        except ObjectNotFoundError:
            return Survey(session, None, "")
        manifest = await trio.to_thread.run_sync(manifests.decode, raw, key)
        return Survey(session, manifest, found.token, manifest_ns=found.modified_ns)

    def _sort_keys(self, survey: Survey) -> None:
        files: dict[bytes, ObjectStat] = {}
        directories: dict[bytes, ObjectStat] = {}
        for key, found in survey.listed.items():
            live = keys.parse_live_key(key)
            if live is None:
                survey.skipped.append(Skipped(key, "no path has this key"))
            elif not (live.path and self._exclusions.match(live.path)):
                (directories if live.is_directory else files)[live.path] = found
        survey.implied = {above for path in (*files, *directories) for above in _above(path)}
        for path, found in files.items():
            if path in directories or path in survey.implied:
                survey.skipped.append(Skipped(found.key, "another key makes its path a directory"))
            else:
                survey.live[path] = found
        survey.live.update(directories)
        survey.implied -= directories.keys()
        survey.implied.discard(b"")

    def _sort_entries(self, survey: Survey) -> None:
        manifest = survey.manifest
        if manifest is None or manifest.format == manifests.OLDER_FORMAT:
            return
        survey.entries = {entry.path: entry for entry in manifest.entries}
        first_of: dict[int, ManifestEntry] = {}
        for entry in manifest.entries:
            if survey.has(entry.path) or self._hidden(entry.path):
                pass
            elif entry.token == "" or manifest.recovery == "committed":
                survey.stored[entry.path] = entry
            if entry.link_group:
                first = first_of.setdefault(entry.link_group, entry)
                if not self._is_current(survey, entry) or not _may_be_one_file(first, entry):
                    survey.broken_groups.add(entry.link_group)
        # A path can be below something that is no directory (any more): then it cannot be shown.
        for path in sorted(survey.stored):
            above = _above(path)
            if any(self._is_file(survey, directory) for directory in above):
                entry = survey.stored.pop(path)
                survey.skipped.append(Skipped(manifests.encode_path(entry.path), "its directory is a file"))
            else:
                survey.implied |= {d for d in above if d and d not in survey.live and d not in survey.stored}

    def _hidden(self, path: bytes) -> bool:
        return bool(path) and (self._exclusions.match(path) or keys.parse_live_key(_any_key(path)) is None)

    @staticmethod
    def _is_current(survey: Survey, entry: ManifestEntry) -> bool:
        live = survey.live.get(entry.path)
        return live.token == entry.token if live is not None else entry.path in survey.stored

    @staticmethod
    def _is_file(survey: Survey, path: bytes) -> bool:
        live, kept = survey.live.get(path), survey.stored.get(path)
        return (live is not None and not live.key.endswith("/")) or (
            kept is not None and not stat.S_ISDIR(kept.mode)
        )

    # --- entries

    async def _entry(self, survey: Survey, path: bytes) -> RemoteEntry | None:
        kept = survey.stored.get(path)
        if kept is not None:
            return await self._stored_entry(survey, kept)
        live = survey.live.get(path)
        if live is None:
            return self._implied_entry(survey, path)
        named = survey.named_by_manifest(path)
        if named is not None and not survey.needs_head(path):
            return self._manifest_entry(survey, named, live.key, live.token)
        entry = await self.head_entry(live.key, path, survey.entries.get(path))
        if entry is None:
            survey.skipped.append(Skipped(live.key, "gone, or a link without a usable target"))
        elif named is not None and entry.token == named.token:
            entry = replace(
                entry,
                sha256=entry.sha256 or named.sha256,
                link_group=0 if named.link_group in survey.broken_groups else named.link_group,
            )
        return entry

    async def _stored_entry(self, survey: Survey, kept: ManifestEntry) -> RemoteEntry:
        key, token = "", ""
        if stat.S_ISREG(kept.mode) and kept.sha256:
            key = keys.content_key(survey.session, kept.sha256)
            found = await self._store.head(key, tries=READ_TRIES)
            if found is not None:
                token = found.token
            else:
                survey.skipped.append(Skipped(key, "the manifest names it, and it is gone"))
                key = ""
        return self._manifest_entry(survey, kept, key, token)

    def _manifest_entry(self, survey: Survey, named: ManifestEntry, key: str, token: str) -> RemoteEntry:
        return RemoteEntry(
            path=named.path,
            key=key,
            mode=self._shown_mode(named.path, named.mode),
            attributes=FileAttributes(named.mode, named.uid, named.gid, named.mtime_ns),
            size_bytes=named.size_bytes,
            sha256=named.sha256,
            token=token,
            xattrs=dict(named.xattrs),
            target=named.target,
            link_group=0 if named.link_group in survey.broken_groups else named.link_group,
        )

    def _implied_entry(self, survey: Survey, path: bytes) -> RemoteEntry:
        named = survey.entries.get(path)
        if named is not None and stat.S_ISDIR(named.mode):
            return self._manifest_entry(survey, named, "", "")
        attributes = FileAttributes(DEFAULT_DIRECTORY_MODE, *self._owner, survey.newest_ns)
        return RemoteEntry(path, "", DEFAULT_DIRECTORY_MODE, attributes)

    async def _with_target(self, entry: RemoteEntry) -> RemoteEntry | None:
        if not 0 < entry.size_bytes <= MAX_TARGET_BYTES:
            return None
        try:
            target = await self._store.read(entry.key, expected=Token(entry.token), tries=READ_TRIES)
        except (PreconditionFailedError, ObjectNotFoundError):
            # It changed between two requests: the next comparison sees what it is now.
            return None
        return replace(entry, target=target) if b"\0" not in target else None

    def _shown_mode(self, path: bytes, mode: int) -> int:
        return _PRIVATE_MODE if stat.S_ISREG(mode) and path and self._private.match(path) else mode


def _may_be_one_file(first: ManifestEntry, other: ManifestEntry) -> bool:
    """Whether two names of a manifest can be those of one file, whatever it says: directories never are."""
    if stat.S_ISDIR(first.mode):
        return False
    return (first.mode, first.size_bytes, first.sha256, first.target) == (
        other.mode, other.size_bytes, other.sha256, other.target,
    )  # fmt: skip


def _above(path: bytes) -> list[bytes]:
    """Every directory above a path, the root (empty) included; none for the root."""
    parts = path.split(b"/") if path else []
    return [b"/".join(parts[:count]) for count in range(len(parts))]


def _any_key(path: bytes) -> str:
    """A key of a path whatever its length, in a session that may have any name."""
    return f"{keys.SESSIONS_PREFIX}any/{manifests.encode_path(path)}"
