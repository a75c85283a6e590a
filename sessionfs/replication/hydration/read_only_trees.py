"""Read-only trees beside a session, under names that no session can have.

``<id>%g<n>`` is a generation of the past, ``<id>%conflicts`` what was kept aside, ``<id>%unnamed`` what no path can name. Their rows are those of any
session that came from the bucket, with remote numbers, but say nothing of objects: a live key has one row, the session's own. Nothing of them is ever
owed, compared, refreshed, committed or listed.

* A generation is read once, from its manifest, in one request; its bytes are found by their content.
* The other two are made of a listing, each time they are opened: their bytes are the objects themselves. A file of ``%unnamed`` has the rest of
  its key as its path, with everything but letters, digits and ``_.-~`` written ``%XX``, cut into names of 240 characters.
"""

from __future__ import annotations

import re
import stat
from collections import OrderedDict
from collections.abc import Mapping
from urllib.parse import quote, unquote

import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats import object_metadata
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model import keys, roots
from sessionfs.model.errors import CorruptDataError, InvalidSessionIdError, NotFoundError, ObjectNotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fetches.content_fetch import ContentFetcher, Named
from sessionfs.replication.hydration.fetches.damage import Damage
from sessionfs.replication.hydration.fetches.fetching import ObjectFetcher
from sessionfs.replication.hydration.fetches.file_fetch import Wanted
from sessionfs.replication.hydration.survey import RemoteEntry, RemoteTree, Survey, above
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal

_GENERATION = re.compile(r"g([1-9][0-9]{0,18})")
_CONFLICTS = "conflicts"
_UNNAMED = "unnamed"
_FILE = stat.S_IFREG | 0o444
_DIRECTORY = stat.S_IFDIR | 0o555
_NAME_CHARACTERS = 240
_REMEMBERED_MANIFESTS = 2


def is_read_only_tree(session: str) -> bool:
    """Whether a name is that of a read-only tree and no session's."""
    return roots.is_tree_of_the_past(session)


class ReadOnlyTrees:
    """Opens read-only trees and fetches their files.

    Args:
        journal: Where their rows go.
        store: The bucket.
        reader: Reads manifests and listings.
        fetcher: Downloads objects.
        content: Finds bytes by their content.
        owner: Who owns what only a listing tells of (user, group).
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        reader: RemoteTreeReader,
        *,
        fetcher: ObjectFetcher,
        content: ContentFetcher,
        owner: tuple[int, int],
    ) -> None:
        self._journal = journal
        self._store = store
        self._reader = reader
        self._fetcher = fetcher
        self._content = content
        self._owner = owner
        self._damage = Damage(reader.chain)
        self._manifests: OrderedDict[str, Mapping[bytes, ManifestEntry]] = OrderedDict()

    async def open(self, tree: str) -> int | None:
        """Make a tree's rows, or bring them up to date.

        Returns:
            Number of its root; None when there is no such tree.

        Raises:
            InvalidSessionIdError: No tree can have this name.
            CorruptDataError, UnsupportedFormatError: Its manifest cannot be read.
            UnavailableError, AccessError: Nothing is known.
        """
        session, what, generation = _parsed(tree)
        root = self._journal.child(ROOT_NUMBER, tree.encode())
        if generation:
            return root if root is not None else await self._open_generation(session, tree, generation)
        objects = await self._listed(session, what)
        made = await trio.to_thread.run_sync(self._tree_of_listing, tree, objects)
        with self._journal.transaction():
            root = self._journal.child(ROOT_NUMBER, tree.encode())
            if root is None:
                return self._add(tree, made, 0)
            self._drop_gone(tree, root, made)
            rows = TreeRows(self._journal, SessionId(tree), with_objects=False)
            for entry in made.entries[1:]:
                rows.add(entry)
        return root

    async def generations(self, session: SessionId) -> list[int]:
        """Name the generations that can be shown, ascending; one above the newest is a commit that never happened.

        Raises:
            UnavailableError, AccessError: Nothing is known.
            CorruptDataError, UnsupportedFormatError: The newest manifest cannot be read.
        """
        prefix = keys.manifest_prefix(session)
        found, _ = await self._store.list_all(prefix, whole_segments=True)
        token = next((stat_.token for stat_ in found if stat_.key == keys.manifest_key(session)), None)
        if token is None:
            return []
        row = self._journal.session(session)
        if row is not None and row.manifest_token == token:
            newest = row.generation
        else:
            read = await self._reader.chain.newest(session)
            newest = read.manifest.generation if read is not None else 0
        numbers = (keys.parse_generation_key(session, stat_.key) for stat_ in found)
        return sorted(number for number in numbers if number is not None and 0 < number <= newest)

    async def fetch(self, tree: SessionId, path: bytes, node: Node) -> tuple[str, str]:
        """Bring a file into staging.

        Args:
            tree: The tree's name.
            path: The file.
            node: Its inode.

        Returns:
            The file's name below the staging directory, and the sha256 of its bytes.

        Raises:
            ObjectNotFoundError: It is gone since the tree was made.
            CorruptDataError: Its bytes do not verify, or no object holds them.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: The store does not give it.
        """
        session, what, generation = _parsed(tree)
        if generation:
            return await self._content.fetch(await self._named(session, generation, (tree, path), node))
        known = await self._known(session, what, path)
        self._journal.update_node(node.number, size=known.size_bytes)
        return await self._fetcher.fetch(known)

    async def wanted(self, tree: SessionId, path: bytes, node: Node) -> Wanted:
        """Say what a file's bytes are and where they may be; arguments as `fetch`.

        Raises:
            ObjectNotFoundError: It is gone since the tree was made.
            UnavailableError, AccessError: Nothing is known.
        """
        session, what, generation = _parsed(tree)
        named = await self._named(session, generation, (tree, path), node)
        return Wanted(named, [] if generation else [await self._known(session, what, path)])

    async def _named(
        self, session: SessionId, generation: int, place: tuple[SessionId, bytes], node: Node
    ) -> Named:
        tree, path = place
        entry = (await self._entries(session, generation, tree)).get(path) if generation else None
        if entry is None:
            blocks = self._journal.blocks(node.sha256)
            entry = ManifestEntry(path, node.mode, node.size_bytes, node.sha256, blocks=blocks)
        return Named(session, generation, entry)

    async def _known(self, session: SessionId, what: str, path: bytes) -> KnownObject:
        """The object that is a file of a listing."""
        key = _conflict_key(session, path) if what == _CONFLICTS else _unnamed_key(session, path)
        found = await self._store.head(key, tries=READ_TRIES)
        if found is None:
            raise ObjectNotFoundError(f"{key} is gone")
        user = found.metadata.user if found.metadata else {}
        sha256 = object_metadata.decode_provenance(user).sha256
        return KnownObject(key, 0, found.token, "", sha256, found.size_bytes, _FILE, 0, 0, 0, "")

    # --- generations

    async def _open_generation(self, session: SessionId, tree: str, generation: int) -> int | None:
        try:
            manifest = await self._reader.chain.read(session, generation)
        except NotFoundError:
            return None
        except CorruptDataError as problem:
            raise await self._damage.of_manifest(session, problem, below=generation) from None
        made = await trio.to_thread.run_sync(self._reader.trees.tree, SessionId(tree), manifest)
        self._remember(tree, manifest)
        with self._journal.transaction():
            root = self._journal.child(ROOT_NUMBER, tree.encode())
            if root is not None:
                return root
            for entry in manifest.entries:
                if entry.blocks and entry.sha256:
                    self._journal.put_blocks(entry.sha256, entry.blocks)
            root = self._add(tree, made, generation)
            self._journal.update_session(tree, generation=generation, committed_at=manifest.created_at)
            return root

    async def _entries(self, session: SessionId, generation: int, tree: str) -> Mapping[bytes, ManifestEntry]:
        """The entries of a generation: their tokens spare requests. Without its manifest the rows say enough."""
        if tree not in self._manifests:
            try:
                self._remember(tree, await self._reader.chain.read(session, generation))
            except (NotFoundError, CorruptDataError):
                return {}
        self._manifests.move_to_end(tree)
        return self._manifests[tree]

    def _remember(self, tree: str, manifest: Manifest) -> None:
        self._manifests[tree] = {entry.path: entry for entry in manifest.entries if stat.S_ISREG(entry.mode)}
        while len(self._manifests) > _REMEMBERED_MANIFESTS:
            self._manifests.popitem(last=False)

    # --- listings

    async def _listed(self, session: SessionId, what: str) -> dict[bytes, ObjectStat]:
        """Objects of a listing by their path in the tree."""
        if what == _CONFLICTS:
            found, _ = await self._store.list_all(keys.conflicts_prefix(session), whole_segments=False)
            paths = ((_conflict_path(session, stat_.key), stat_) for stat_ in found)
            return {path: stat_ for path, stat_ in paths if path}
        survey = await self._reader.listing(session, None, "")
        skipped = (survey.listed[one.key] for one in survey.skipped if one.key in survey.listed)
        return {_unnamed_path(session, stat_.key): stat_ for stat_ in skipped}

    def _tree_of_listing(self, tree: str, objects: dict[bytes, ObjectStat]) -> RemoteTree:
        directories = {directory for path in objects for directory in above(path)} | {b""}
        newest_ns = max((found.modified_ns for found in objects.values()), default=0)
        entries = [
            RemoteEntry(path, "", _DIRECTORY, FileAttributes(_DIRECTORY, *self._owner, newest_ns))
            for path in directories
        ]
        for path, found in objects.items():
            if path not in directories:
                attributes = FileAttributes(_FILE, *self._owner, found.modified_ns)
                entries.append(RemoteEntry(path, "", _FILE, attributes, found.size_bytes))
        entries.sort(key=lambda entry: entry.path.split(b"/"))
        return RemoteTree(Survey(SessionId(tree), None, ""), tuple(entries))

    def _drop_gone(self, tree: str, root: int, made: RemoteTree) -> None:
        """Remove what is gone from the bucket and is not on this disk."""
        there = {entry.path for entry in made.entries}
        gone = [(path, node) for path, node in self._journal.tree(root) if path and path not in there]
        for path, node in sorted(gone, key=lambda one: -one[0].count(b"/")):
            parent = self._journal.resolve(tree, path.rpartition(b"/")[0])
            if parent is not None and not node.present and not self._journal.children(node.number):
                self._journal.unlink(parent, path.rpartition(b"/")[2])

    # --- rows

    def _add(self, tree: str, made: RemoteTree, generation: int) -> int:
        TreeRows(self._journal, SessionId(tree), with_objects=False).add_session(made)
        self._journal.update_session(tree, tree_of=generation)
        root = self._journal.child(ROOT_NUMBER, tree.encode())
        return root if root is not None else 0


def _parsed(tree: str) -> tuple[SessionId, str, int]:
    """Session, what of it, and the generation's number or 0.

    Raises:
        InvalidSessionIdError: No tree can have this name.
    """
    base, what = roots.split_tree(tree)
    session = roots.unit_id(base)
    found = _GENERATION.fullmatch(what)
    if found is None and what not in {_CONFLICTS, _UNNAMED}:
        raise InvalidSessionIdError(f"session id {tree!r} names nothing of session {base}")
    return session, what, int(found.group(1)) if found else 0


def _conflict_path(session: SessionId, key: str) -> bytes:
    """Path of an object kept aside, empty when no path can name it."""
    return manifests.decode_path(key.removeprefix(keys.conflicts_prefix(session)).rstrip("/")) or b""


def _conflict_key(session: SessionId, path: bytes) -> str:
    return keys.conflicts_prefix(session) + manifests.encode_path(path)


def _unnamed_path(session: SessionId, key: str) -> bytes:
    rest = quote(key.removeprefix(keys.session_prefix(session)), safe="")
    pieces = [rest[at : at + _NAME_CHARACTERS] for at in range(0, len(rest), _NAME_CHARACTERS)]
    return "/".join(pieces).encode()


def _unnamed_key(session: SessionId, path: bytes) -> str:
    return keys.session_prefix(session) + unquote(path.decode().replace("/", ""))
