"""Rows of the journal for what the bucket has. Synchronous: one comparison is one transaction of its caller.

Every new inode gets a remote number and is not present: the daemon makes it in the working copy when somebody looks. A path that
already has a name here is left alone by `add`.
"""

from __future__ import annotations

import stat

from sessionfs.formats import extended_attributes
from sessionfs.model.names import SessionId
from sessionfs.replication.remote_tree import RemoteEntry, RemoteTree, Survey
from sessionfs.working_copy.known_content import KnownObject
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
    )


def shown_size(entry: RemoteEntry) -> int:
    """Length of a file, or of a link's text."""
    return len(entry.target) if stat.S_ISLNK(entry.mode) else entry.size_bytes


class TreeRows:
    """Writes one session's rows.

    Args:
        journal: Where they go.
        session: The session.

    One object serves one transaction: it remembers directories.
    """

    def __init__(self, journal: UploadJournal, session: SessionId) -> None:
        self._journal = journal
        self._session = session
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
        self.note_manifest(tree.survey)

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

    def set_content(self, number: int, entry: RemoteEntry) -> None:
        """Let an inode whose bytes are not here mean the bucket's present object."""
        values: dict[str, str | int | bool | bytes] = {"sha256": entry.sha256, "clean_size": -1}
        if entry.xattrs is not None:
            values["xattrs"] = extended_attributes.pack(entry.xattrs)
        self._journal.update_node(number, **values)
        self._remember(entry, number)

    def note_manifest(self, survey: Survey) -> None:
        """Remember the newest generation: the base of the next commit."""
        manifest = survey.manifest
        self._journal.update_session(
            self._session,
            generation=manifest.generation if manifest else 0,
            manifest_token=survey.manifest_token,
            committed_at=manifest.created_at if manifest else "",
        )

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

    def _remember(self, entry: RemoteEntry, number: int) -> None:
        if entry.key:
            self._journal.put_object(known_object(entry, number))
