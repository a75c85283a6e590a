"""What the disk has lost without a record: never deleted in the bucket for that, and fetched again where the bucket has it.

A lost inode gives its number back to the disk, which gives it to the next file. So what the bucket still has gets a number of its own.
"""

from __future__ import annotations

import stat
from dataclasses import replace

from sessionfs.model import keys, names
from sessionfs.model.names import SessionId
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal


class MissingFiles:
    """Corrects the tree of one session. Synchronous: inside its caller's transaction.

    Args:
        journal: The tree, and what the bucket is known to hold.
        session: The session.
    """

    def __init__(self, journal: UploadJournal, session: SessionId) -> None:
        self._journal = journal
        self._session = session

    def lose(self, parent: int, name: bytes, path: bytes) -> None:
        """Let a name that is not on this disk, and all below it, mean what the bucket has.

        Args:
            parent: The directory.
            name: A name in it; one whose bytes were elsewhere before is left as it is.
            path: Its path inside the session.
        """
        number = self._journal.child(parent, name)
        node = self._journal.node(number) if number is not None else None
        if node is None or not node.present:
            return
        key = keys.live_key(self._session, path, is_directory=node.is_directory)
        known = self._journal.object(key) if key is not None else None
        if node.is_directory:
            self._lose_directory(parent, name, path, node, known)
        else:
            self._journal.unlink(parent, name)
            if stat.S_ISREG(node.mode):
                known = known or self._moved_from(node)
            if known is not None and stat.S_ISREG(node.mode):
                self._place(parent, name, node, known)
            elif known is None:
                self._announce(path)
            else:
                # A link's text is only in the bucket now: the next comparison finds it there, like one that is new.
                self._journal.drop_object(known.key)

    def _lose_directory(
        self, parent: int, name: bytes, path: bytes, node: Node, known: KnownObject | None
    ) -> None:
        children = self._journal.children(node.number)
        self._journal.unlink(parent, name)
        number = self._place(parent, name, node, known)
        for inner, child in children:
            self._journal.move(node.number, inner, number, inner, child)
            self.lose(number, inner, path + b"/" + inner)
        if known is None and not self._journal.children(number):
            self._journal.unlink(parent, name)
            self._announce(path)

    def _moved_from(self, node: Node) -> KnownObject | None:
        """The object under a former name, of a file whose rename has not reached the bucket."""
        if not node.sha256 or self._journal.names_of(node.number):
            return None
        own = (known for known in self._journal.objects_of(node.number) if known.sha256 == node.sha256)
        return next(own, None)

    def _place(self, parent: int, name: bytes, node: Node, known: KnownObject | None) -> int:
        number = self._journal.next_remote_number()
        if known is None:
            self._journal.put_node(
                number, mode=node.mode, uid=node.uid, gid=node.gid, mtime_ns=node.mtime_ns, present=False
            )
        else:
            self._journal.put_node(
                number, mode=known.mode, uid=known.uid, gid=known.gid, size_bytes=known.size_bytes,
                mtime_ns=known.mtime_ns, present=False, sha256=known.sha256,
            )  # fmt: skip
            self._journal.put_object(replace(known, number=number))
        self._journal.link(parent, name, number)
        return number

    def _announce(self, path: bytes) -> None:
        self._journal.add_event(
            "session.file.missing", {"session_id": self._session, "path": names.display(path)}
        )
