"""A session as the bucket has it: one manifest, one listing, and a HEAD for what neither describes; or the manifest alone.

Order: the manifest first, then the listing, so that the listing is never older. Rules:

* A session that is recovered at a generation (``hydration/exact_trees.py``) is what its manifest names: nothing is listed.
* A session whose newest manifest says that it was removed is nothing, whatever is below its prefix.
* A live object that the manifest names with its token is described by the manifest; any other by its own metadata. One written about when the
  generation was committed, or later, is asked too: a copy onto itself (``chmod``) may keep its token. The fence of a claim rewrites
  ``manifest.json``, so it is the time of ``<n>.json`` that counts.
* A path of the manifest whose live object is gone was removed. A path that never had one reads from ``.objects/``.
* A key that no path can name, or beside which another makes its path a directory, is reported and never breaks the rest.
* Listings carry no type: nothing is shown before it was described.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace

import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats import object_metadata
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import DEFAULT_DIRECTORY_MODE, FileAttributes
from sessionfs.model import keys
from sessionfs.model.errors import ObjectNotFoundError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.exact_trees import ExactTrees, is_exact, may_be_one_file
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.manifest_chain import ManifestChain
from sessionfs.replication.hydration.survey import (
    PRIVATE_MODE,
    RemoteEntry,
    RemoteTree,
    Skipped,
    Survey,
    above,
)
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat, Token
from sessionfs.working_copy.exclusions import Exclusions

CONCURRENT_HEADS = 64
MAX_TARGET_BYTES = 4095


@dataclass(frozen=True, slots=True)
class KnownManifest:
    """The manifest that a tree here was made of.

    Attributes:
        token: Of ``manifest.json``, "" for none.
        is_exact: It alone was taken.
    """

    token: str = ""
    is_exact: bool = False


class RemoteTreeReader:
    """Reads sessions from the bucket.

    Args:
        store: The bucket.
        exclusions: Names that are not hydrated.
        private_globs: Files that are 0600 on this host.
        owner: Who owns what another tool wrote (user, group).
        at: What is taken over: ``auto``, ``live`` or ``committed``.

    Attributes:
        chain: Reads manifests.
        trees: Makes trees of manifests alone.
    """

    def __init__(
        self,
        store: TrioStore,
        exclusions: Exclusions,
        *,
        private_globs: tuple[str, ...],
        owner: tuple[int, int] | None = None,
        at: str = "auto",
    ) -> None:
        self._store = store
        self._exclusions = exclusions
        self._private = Exclusions(private_globs)
        self._owner = owner if owner is not None else (os.geteuid(), os.getegid())
        self._at = at
        self.chain = ManifestChain(store)
        self.trees = ExactTrees(exclusions, self._private, self._owner)

    async def load(self, session: SessionId, *, is_ours: bool = False) -> RemoteTree | None:
        """Read a whole session; None when it does not exist.

        Args:
            session: The session.
            is_ours: Its live objects count, whatever the manifest says: they are this host's.

        Raises:
            UnavailableError, AccessError: Nothing is known.
            CorruptDataError, UnsupportedFormatError: The manifest cannot be read.
        """
        survey = await self.survey(session, is_ours=is_ours)
        return await self.tree(survey) if survey.exists else None

    async def tree(self, survey: Survey) -> RemoteTree:
        """Describe everything that a survey found; as `load`."""
        if survey.is_exact:
            return await self.exact(survey)
        paths = await trio.to_thread.run_sync(lambda: survey.paths)
        described = await self.describe(survey, paths)
        return RemoteTree(survey, tuple(described[path] for path in paths if path in described))

    async def exact(self, survey: Survey) -> RemoteTree:
        """Give the tree of a survey that is a manifest alone."""
        manifest = survey.manifest or Manifest(survey.session, 0)
        return await trio.to_thread.run_sync(
            self.trees.tree, survey.session, manifest, survey.manifest_token, survey.manifest_ns
        )

    def is_exact(self, manifest: Manifest | None) -> bool:
        """Whether this host takes over exactly a newest manifest's generation."""
        return is_exact(self._at, manifest)

    async def survey(
        self, session: SessionId, *, known: KnownManifest | None = None, is_ours: bool = False
    ) -> Survey:
        """Read the manifest and, unless it alone counts, list the session; as `load`.

        Args:
            session: The session.
            known: The manifest that need not be read again, None for none.
            is_ours: As `load`.
        """
        survey = await self._manifest(session, known or KnownManifest())
        if not is_ours and (survey.is_exact or survey.is_removed):
            return survey
        survey.is_exact = False
        await self._list(survey)
        return survey

    async def listing(self, session: SessionId, manifest: Manifest | None, token: str) -> Survey:
        """List a session whose manifest is known, whatever it says; as `survey`."""
        survey = Survey(session, manifest, token)
        await self._list(survey)
        return survey

    async def _list(self, survey: Survey) -> None:
        if survey.manifest is not None:
            survey.generation_ns = await self._committed_ns(survey)
        objects, _ = await self._store.list_all(keys.session_prefix(survey.session), whole_segments=False)
        survey.listed = {found.key: found for found in objects}
        survey.newest_ns = max((found.modified_ns for found in objects), default=0)
        # Large sessions take a while, and the loop serves others too.
        await trio.to_thread.run_sync(self._sort, survey)

    async def _committed_ns(self, survey: Survey) -> int:
        """The store's time of the commit; 0 when it cannot be told: everything is asked then."""
        manifest = survey.manifest
        if manifest is None or not manifest.epoch:
            # Written by a version that never rewrites it.
            return survey.manifest_ns
        if not manifest.generation:
            return 0
        key = keys.generation_key(survey.session, manifest.generation)
        found = await self._store.head(key, tries=READ_TRIES)
        return found.modified_ns if found is not None else 0

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
        return await self.entry_of(found, path, previous) if found is not None else None

    async def entry_of(
        self, found: ObjectStat, path: bytes, previous: ManifestEntry | None
    ) -> RemoteEntry | None:
        """Describe a live object that was just looked at; as `head_entry`."""
        key = found.key
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
            (is_directory and previous.type == "directory")
            or previous.token == found.token
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
            epoch=provenance.epoch,
            xattrs=dict(previous.xattrs) if same and previous is not None else None,
        )
        return await self._with_target(entry) if stat.S_ISLNK(entry.mode) else entry

    # --- the survey

    def _sort(self, survey: Survey) -> None:
        self._sort_keys(survey)
        self._sort_entries(survey)

    async def _manifest(self, session: SessionId, known: KnownManifest) -> Survey:
        if known.token:
            head = await self._store.head(keys.manifest_key(session), tries=READ_TRIES)
            if head is not None and head.token == known.token:
                return Survey(
                    session, None, known.token, manifest_ns=head.modified_ns, manifest_unchanged=True,
                    is_exact=known.is_exact,
                )  # fmt: skip
        newest = await self.chain.newest(session)
        if newest is None:
            return Survey(session, None, "")
        return Survey(
            session,
            newest.manifest,
            newest.stat.token,
            manifest_ns=newest.stat.modified_ns,
            is_exact=self.is_exact(newest.manifest),
        )

    def _sort_keys(self, survey: Survey) -> None:
        files: dict[bytes, ObjectStat] = {}
        directories: dict[bytes, ObjectStat] = {}
        for key, found in survey.listed.items():
            live = keys.parse_live_key(key)
            if live is None:
                survey.skipped.append(Skipped(key, "no path has this key"))
            elif not (live.path and self._exclusions.match(live.path)):
                (directories if live.is_directory else files)[live.path] = found
        survey.implied = {directory for path in (*files, *directories) for directory in above(path)}
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
            elif entry.token == "" and (entry.sha256 or not stat.S_ISREG(entry.mode)):
                survey.stored[entry.path] = entry
            if entry.link_group:
                first = first_of.setdefault(entry.link_group, entry)
                if not self._is_current(survey, entry) or not may_be_one_file(first, entry):
                    survey.broken_groups.add(entry.link_group)
        # A path can be below something that is no directory (any more): then it cannot be shown.
        for path in sorted(survey.stored):
            directories = above(path)
            if any(self._is_file(survey, directory) for directory in directories):
                entry = survey.stored.pop(path)
                survey.skipped.append(Skipped(manifests.encode_path(entry.path), "its directory is a file"))
            else:
                survey.implied |= {
                    d for d in directories if d and d not in survey.live and d not in survey.stored
                }

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
        return PRIVATE_MODE if stat.S_ISREG(mode) and path and self._private.match(path) else mode


def _any_key(path: bytes) -> str:
    """A key of a path whatever its length, in a session that may have any name."""
    return f"{keys.SESSIONS_PREFIX}any/{manifests.encode_path(path)}"
