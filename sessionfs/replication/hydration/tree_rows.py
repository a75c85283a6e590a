"""Rows of the journal for what the bucket has. Synchronous: one comparison is one transaction of its caller.

Every new inode gets a remote number and is not present: the daemon makes it in the working copy when somebody looks. A path that
already has a name here is left alone by `add`.

Rows of a read-only tree say nothing of objects: a live key has one row, the session's own.
"""

from __future__ import annotations

import stat
from dataclasses import replace

from sessionfs.formats import extended_attributes
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.exact_trees import live_key
from sessionfs.replication.hydration.survey import RemoteEntry, RemoteTree, Survey
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal


def known_object(entry: RemoteEntry, number: int) -> KnownObject:
    """What the bucket is known to hold, from an entry that has an object."""
    attributes = entry.attributes
    return KnownObject(
        key=entry.key,
        number=number,
        token=entry.token,
        write_id=entry.write_id,
        sha256=entry.sha256,
        size_bytes=entry.size_bytes,
        mode=attributes.mode,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        lineage=entry.lineage,
        epoch=entry.epoch,
    )


def _is_as_named(known: KnownObject, entry: ManifestEntry) -> bool:
    has = (known.token, known.mode, known.uid, known.gid, known.mtime_ns)
    return has == (entry.token, entry.mode, entry.uid, entry.gid, entry.mtime_ns)


def shown_size(entry: RemoteEntry) -> int:
    """Length of a file, or of a link's text."""
    return len(entry.target) if stat.S_ISLNK(entry.mode) else entry.size_bytes


class TreeRows:
    """Writes one session's rows.

    Args:
        journal: Where they go.
        session: The session, or the name of a read-only tree.
        with_objects: Whether the entries' objects are the session's own.

    One object serves one transaction: it remembers directories.
    """

    def __init__(self, journal: UploadJournal, session: SessionId, *, with_objects: bool = True) -> None:
        self._journal = journal
        self._session = session
        self._with_objects = with_objects
        self._groups: dict[int, int] = {}
        self._directories: dict[bytes, int] = {}

    def add_session(self, tree: RemoteTree) -> None:
        """Write all rows of a session that is not known here."""
        root, *others = tree.entries
        number = self._new_node(root)
        self._journal.link(ROOT_NUMBER, self._session.encode(), number)
        self._remember(root, number)
        self._journal.add_session(self._session, number, known=True, written=False)
        for entry in others:
            self.add(entry)
        if self._with_objects:
            self.note_manifest(tree.survey)
            self.name_contents(tree.survey.manifest)

    def add(self, entry: RemoteEntry) -> int | None:
        """Give a path its name, inode and object.

        Returns:
            Number of its directory; None when the path has a name here, or its directory is none.
        """
        above, _, name = entry.path.rpartition(b"/")
        directory = self._directory(above)
        if directory is None or not name or self._journal.child(directory, name) is not None:
            return None
        number = self._groups.get(entry.link_group) if entry.link_group else None
        if number is None:
            number = self._new_node(entry)
            if entry.link_group:
                self._groups[entry.link_group] = number
        self._journal.link(directory, name, number)
        self._remember(entry, number)
        return directory

    def join_groups(self, survey: Survey) -> None:
        """Let new names of a file find the names that are known already."""
        for path, entry in survey.entries.items():
            if not entry.link_group or entry.link_group in survey.broken_groups:
                continue
            number = self._journal.resolve(self._session, path)
            node = self._journal.node(number) if number is not None else None
            if node is not None and stat.S_ISREG(node.mode):
                self._groups.setdefault(entry.link_group, node.number)

    def is_same_file(self, entry: RemoteEntry, number: int) -> bool:
        """Whether the bucket has an entry as one of the names of an inode."""
        return entry.link_group != 0 and self._groups.get(entry.link_group) == number

    def split(self, parent: int, name: bytes, entry: RemoteEntry) -> None:
        """Give one name of a file an inode of its own: the bucket has other bytes under it now."""
        number = self._new_node(entry)
        self._journal.link(parent, name, number)
        self._remember(entry, number)

    def set_attributes(self, number: int, entry: RemoteEntry) -> None:
        """Let an inode be as the bucket describes it; its bytes are another matter."""
        self._journal.update_node(
            number,
            mode=entry.mode,
            uid=entry.attributes.uid,
            gid=entry.attributes.gid,
            size=shown_size(entry),
            mtime_ns=entry.attributes.mtime_ns,
            target=entry.target,
        )

    def set_content(self, number: int, entry: RemoteEntry, *, may_have_grown: bool = False) -> None:
        """Let an inode whose bytes are not here mean the bucket's present object.

        Args:
            number: The inode.
            entry: The object.
            may_have_grown: Whoever put the object may not know what generations name here, and may have appended to it.
        """
        values: dict[str, str | int | bool | bytes] = {"sha256": entry.sha256, "clean_size": -1}
        if entry.xattrs is not None:
            values["xattrs"] = extended_attributes.pack(entry.xattrs)
        self._journal.update_node(number, **values)
        self._remember(entry, number, may_have_grown=may_have_grown)

    def note_manifest(self, survey: Survey) -> None:
        """Remember the newest generation: the base of the next commit."""
        manifest = survey.manifest
        is_committed = manifest is not None and manifest.recovery == "committed"
        self._journal.update_session(
            self._session,
            generation=manifest.generation if manifest else 0,
            manifest_token=survey.manifest_token,
            committed_at=manifest.created_at if manifest else "",
            # Who commits next says the same of it.
            recovery="committed" if is_committed else "",
        )

    def name_contents(self, manifest: Manifest | None) -> list[tuple[ManifestEntry, KnownObject]]:
        """Note which known objects have exactly what a newest generation names, and its blocks.

        Returns:
            Entries whose live object is longer: it may begin with these bytes, if they were not copied aside.
        """
        longer: list[tuple[ManifestEntry, KnownObject]] = []
        below = self._journal.objects_below(keys.session_prefix(self._session))
        objects = {known.key: known for known in below}
        for entry in manifest.entries if manifest is not None else ():
            if not stat.S_ISREG(entry.mode) or not entry.sha256:
                continue
            if entry.blocks:
                self._journal.put_blocks(entry.sha256, entry.blocks)
            known = objects.get(live_key(self._session, entry.path, is_directory=False))
            if known is None or not known.number or not stat.S_ISREG(known.mode):
                continue
            if not self._name_content(entry, known):
                longer.append((entry, known))
        return longer

    def differs(self, manifest: Manifest | None) -> bool:
        """Whether the bucket's live objects, as they are known, are not exactly what a newest generation names: the next commit has news."""
        entries = manifest.entries if manifest is not None else ()
        named = {live_key(self._session, e.path, is_directory=stat.S_ISDIR(e.mode)): e for e in entries}
        named.pop("", None)
        objects = self._journal.objects_below(keys.session_prefix(self._session))
        return len(objects) != len(named) or any(
            known.key not in named or not _is_as_named(known, named[known.key]) for known in objects
        )

    def _name_content(self, entry: ManifestEntry, known: KnownObject) -> bool:
        """Name an object's content, if it is the entry's; False when it may begin with it."""
        if not known.sha256 and known.token == entry.token:
            known = replace(known, sha256=entry.sha256)
            self._journal.put_object(known)
        if (known.sha256, known.size_bytes) == (entry.sha256, entry.size_bytes):
            if self._journal.work(known.key) is not None:
                # An upload that is under way may have copied it aside already, and takes its place.
                prefix = Prefix(entry.sha256, entry.size_bytes, is_proven=False)
                self._journal.name_prefix(known.key, prefix)
            else:
                self._journal.name_object(known.key)
            return True
        may_be = known.size_bytes > entry.size_bytes or (
            known.size_bytes == entry.size_bytes and not known.sha256
        )
        return not (entry.size_bytes and may_be)

    def _directory(self, path: bytes) -> int | None:
        """Number of a directory; None when the path is none."""
        if path not in self._directories:
            number = self._journal.resolve(self._session, path)
            node = self._journal.node(number) if number is not None else None
            if node is None or not node.is_directory:
                return None
            self._directories[path] = node.number
        return self._directories[path]

    def _new_node(self, entry: RemoteEntry) -> int:
        number = self._journal.next_remote_number()
        self._journal.put_node(
            number,
            mode=entry.mode,
            uid=entry.attributes.uid,
            gid=entry.attributes.gid,
            size_bytes=shown_size(entry),
            mtime_ns=entry.attributes.mtime_ns,
            present=False,
            target=entry.target,
            xattrs=extended_attributes.pack(entry.xattrs or {}),
            sha256=entry.sha256,
        )
        return number

    def _remember(self, entry: RemoteEntry, number: int, *, may_have_grown: bool = False) -> None:
        if not entry.key or not self._with_objects:
            return
        before = self._journal.object(entry.key)
        is_other = before is not None and (before.sha256, before.size_bytes) != (
            entry.sha256,
            entry.size_bytes,
        )
        # Who appends copies nothing. That it begins with what is named is proven before anything relies on it.
        may_begin = before is not None and (
            entry.size_bytes > before.size_bytes
            or (entry.size_bytes == before.size_bytes and not entry.sha256)
        )
        has_grown = may_have_grown and may_begin
        if is_other and not has_grown:
            # Whoever wrote this one has copied aside what generations named of the one before.
            self._journal.forget_named(entry.key)
        self._journal.put_object(known_object(entry, number))
