"""What a key's object should be, read from the tree and the working copy."""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model import keys
from sessionfs.model.keys import LivePath
from sessionfs.model.names import SessionId
from sessionfs.replication.uploads.content_source import Content, has_content
from sessionfs.replication.uploads.sqlite_image import Deferred, database_path_of
from sessionfs.replication.uploads.stable_image import Image, Known, StableImages
from sessionfs.replication.uploads.working_files import WorkingFiles, attributes_of
from sessionfs.working_copy.journal_tree import Incarnation, Node, Wanted
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal

_PASSING_ERRORS = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENOSPC, errno.EDQUOT}
)


_NONE = SessionId("")

Prepare = Callable[[Known], Awaitable[Image | None]]
"""Gives an image; None when it is not good any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An image that was taken before its upload.

    Attributes:
        version: Of the key's row when it was taken: a key marked since needs another upload.
        prepare: Gives the image.
    """

    version: int
    prepare: Prepare


@dataclass(frozen=True, slots=True)
class Missing:
    """The tree has it, and the disk has not."""


@dataclass(slots=True)
class Subject:
    """What a key's object should be.

    Attributes:
        content: Its bytes.
        attributes: Its attributes.
        image: The bytes themselves, or the file that has them; None when they are only in the bucket.
        node: The inode.
        incarnation: Tells when the inode's number means another one.
        session: The session.
    """

    content: Content
    attributes: FileAttributes
    image: Image | bytes | None
    node: Node
    incarnation: Incarnation = field(default_factory=Incarnation)
    session: SessionId = _NONE

    def close(self) -> None:
        """Let the file go."""
        if isinstance(self.image, Image):
            self.image.close()

    def is_known_as(self, known: KnownObject | None) -> bool:
        """Whether an object is already what is wanted."""
        return (
            known is not None
            and has_content(known, self.content)
            and FileAttributes(known.mode, known.uid, known.gid, known.mtime_ns) == self.attributes
        )


class Subjects:
    """Reads them.

    Args:
        journal: The tree and what is known.
        files: The working copy.
        images: Stable bytes of its files.

    Attributes:
        prepared: Gives, once, the image for a key: a database as it was at a commit's cut.
    """

    def __init__(self, journal: UploadJournal, files: WorkingFiles, images: StableImages) -> None:
        self._journal = journal
        self._files = files
        self._images = images
        self.prepared: dict[str, Prepared] = {}

    async def read(self, key: str, live: LivePath, wanted: Wanted) -> Subject | Deferred | Missing | None:
        """Read what a key's object should be.

        Returns:
            It; None when no object should be there; or why it cannot be said now.

        Raises:
            OSError: The file cannot be read.
        """
        node = wanted.node
        if not node.present:
            return self._remote_subject(node)
        status = self._files.status(live.session, live.path)
        if status is None:
            return Missing()
        if stat.S_ISDIR(status.st_mode) != live.is_directory:
            return Deferred("it is being replaced")
        if stat.S_ISREG(status.st_mode):
            return await self._file_subject(key, live, node)
        if stat.S_ISDIR(status.st_mode):
            return _small_subject(node, attributes_of(status), b"")
        if stat.S_ISLNK(status.st_mode):
            target = self._files.link_target(live.session, live.path)
            return _small_subject(node, attributes_of(status), target)
        return None

    async def _file_subject(self, key: str, live: LivePath, node: Node) -> Subject | Deferred | None:
        if self._files.is_side_file(live.session, live.path):
            return self._local_only(key, live)
        known = self._journal.object(key)
        # Whether the file only grew decides how it is sent, and whether what generations name must be copied aside.
        prefix_bytes = known.size_bytes if known is not None and known.sha256 else 0
        try:
            image = await self._image(
                key,
                live,
                Known(node.number, node.writers, node.clean_identity, node.sha256, prefix_bytes),
            )
        except OSError as problem:
            if problem.errno in _PASSING_ERRORS:
                return Deferred(f"it cannot be read now: {problem.strerror}")
            raise
        if isinstance(image, Deferred):
            return image
        is_own = node.number >= FIRST_REMOTE_NUMBER or node.reserved or image.inode == node.number
        content = Content(
            # A file that replaced the one in the tree a moment ago is nobody's source.
            number=node.number if is_own else 0,
            size_bytes=image.size_bytes,
            sha256=image.sha256,
            is_here=True,
            prefix_sha256=image.prefix.hexdigest() if image.prefix is not None else "",
        )
        return Subject(content, image.attributes, image, node)

    async def _image(self, key: str, live: LivePath, known: Known) -> Image | Deferred:
        """Take the image that somebody prepared for this upload, else one of the file as it is now."""
        prepared = self.prepared.pop(key, None)
        image = await prepared.prepare(known) if prepared is not None else None
        if prepared is None or image is None:
            return await self._images.take(live.session, live.path, known)
        row = self._journal.work(key)
        image.is_outdated = row is not None and row.version != prepared.version
        return image

    def _remote_subject(self, node: Node) -> Subject | None:
        attributes = FileAttributes(node.mode, node.uid, node.gid, node.mtime_ns)
        if stat.S_ISDIR(node.mode):
            return _small_subject(node, attributes, b"")
        if stat.S_ISLNK(node.mode):
            return _small_subject(node, attributes, node.target)
        if not stat.S_ISREG(node.mode):
            return None
        if node.size_bytes == 0:
            return _small_subject(node, attributes, b"")
        content = Content(node.number, node.size_bytes, node.sha256, is_here=False)
        return Subject(content, attributes, None, node)

    def _local_only(self, key: str, live: LivePath) -> Deferred | None:
        """A side file has no object; one from before goes once the database's image has what it holds."""
        database = database_path_of(live.path)
        beside = keys.live_key(live.session, database, is_directory=False) if database else None
        if self._journal.object(key) is not None and beside and self._journal.work(beside) is not None:
            return Deferred("its database goes first")
        return None


def _small_subject(node: Node, attributes: FileAttributes, body: bytes) -> Subject:
    content = Content(node.number, len(body), hashlib.sha256(body).hexdigest(), is_here=True)
    return Subject(content, attributes, body, node)
