"""A session as one manifest names it: no listing, no request for each file. Pure.

What a host takes over (setting ``at``):

* ``live``: the newest generation and every newer live object.
* ``committed``, or ``auto`` when the manifest's ``recovery`` says so: exactly the newest generation. Its entries say what is there; where their bytes
  are is found out when they are fetched. A session that was never committed has no generation: its live objects are what there is.
* a number: exactly that generation.

The older layout, and files without a sha256 that never had an object, say too little to be taken exactly: they are taken live.
"""

from __future__ import annotations

import stat

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import DEFAULT_DIRECTORY_MODE, FileAttributes
from sessionfs.model import keys, names
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.survey import (
    PRIVATE_MODE,
    RemoteEntry,
    RemoteTree,
    Skipped,
    Survey,
    above,
)
from sessionfs.working_copy.exclusions import Exclusions


def generation_of(at: str) -> int:
    """Number of the generation that the setting names, 0 when it names none."""
    return int(at) if at.isdecimal() else 0


def is_exact(at: str, manifest: Manifest | None) -> bool:
    """Whether a host takes over exactly a manifest's generation.

    Args:
        at: The setting, ``auto``, ``live`` or ``committed``.
        manifest: The newest; None when there is none.
    """
    if manifest is None or not manifest.generation or manifest.format == manifests.OLDER_FORMAT:
        return False
    if at == "live" or (at == "auto" and manifest.recovery != "committed"):
        return False
    return not any(
        stat.S_ISREG(entry.mode) and not entry.sha256 and not entry.token for entry in manifest.entries
    )


class ExactTrees:
    """Makes trees of manifests.

    Args:
        exclusions: Names that are not hydrated.
        private: Files that are 0600 on this host.
        owner: Who owns a directory that no entry describes (user, group).
    """

    def __init__(self, exclusions: Exclusions, private: Exclusions, owner: tuple[int, int]) -> None:
        self._exclusions = exclusions
        self._private = private
        self._owner = owner

    def tree(
        self, session: SessionId, manifest: Manifest, token: str = "", modified_ns: int = 0
    ) -> RemoteTree:
        """Give a generation's tree.

        Args:
            session: The session, or the name of a read-only tree.
            manifest: The generation.
            token: Of ``manifest.json``, "" for a generation of the past.
            modified_ns: The store's time of the manifest: of directories that no entry describes.
        """
        survey = Survey(session, manifest, token, manifest_ns=modified_ns, is_exact=True)
        named = self._named(manifest, survey)
        survey.entries = named
        survey.broken_groups = _broken_groups(named)
        implied = {directory for path in named for directory in above(path)} - named.keys()
        if b"" not in named:
            implied.add(b"")
        paths = sorted({*named, *implied}, key=lambda path: path.split(b"/"))
        entries = tuple(
            self._entry(survey, named[path]) if path in named else self._implied(path, modified_ns)
            for path in paths
        )
        # The root sorts first: an empty path has one empty segment.
        return RemoteTree(survey, entries)

    def _named(self, manifest: Manifest, survey: Survey) -> dict[bytes, ManifestEntry]:
        """Entries that can be shown: a path below something that is no directory cannot."""
        shown = {
            entry.path: entry
            for entry in manifest.entries
            if not self._is_hidden(entry.path) and (entry.path or stat.S_ISDIR(entry.mode))
        }
        for path in list(shown):
            if any(d in shown and not stat.S_ISDIR(shown[d].mode) for d in above(path)):
                survey.skipped.append(Skipped(manifests.encode_path(path), "its directory is a file"))
                del shown[path]
        return shown

    def _is_hidden(self, path: bytes) -> bool:
        return bool(path) and (
            self._exclusions.match(path) or path.split(b"/", 1)[0] == names.CONTROL_DIRECTORY
        )

    def _entry(self, survey: Survey, named: ManifestEntry) -> RemoteEntry:
        is_directory = stat.S_ISDIR(named.mode)
        key = live_key(survey.session, named.path, is_directory=is_directory) if named.token else ""
        private = stat.S_ISREG(named.mode) and bool(named.path) and self._private.match(named.path)
        return RemoteEntry(
            path=named.path,
            key=key,
            mode=PRIVATE_MODE if private else named.mode,
            attributes=FileAttributes(named.mode, named.uid, named.gid, named.mtime_ns),
            size_bytes=named.size_bytes,
            sha256=named.sha256,
            token=named.token if key else "",
            xattrs=dict(named.xattrs),
            target=named.target,
            link_group=0 if named.link_group in survey.broken_groups else named.link_group,
        )

    def _implied(self, path: bytes, modified_ns: int) -> RemoteEntry:
        attributes = FileAttributes(DEFAULT_DIRECTORY_MODE, *self._owner, modified_ns)
        return RemoteEntry(path, "", DEFAULT_DIRECTORY_MODE, attributes)


def live_key(session: SessionId, path: bytes, *, is_directory: bool) -> str:
    """Key of a path's live object, "" when it can have none."""
    return keys.live_key(session, path, is_directory=is_directory) or ""


def _broken_groups(named: dict[bytes, ManifestEntry]) -> set[int]:
    """Groups whose entries cannot be names of one file, whatever the manifest says: directories never are."""
    first_of: dict[int, ManifestEntry] = {}
    broken: set[int] = set()
    for entry in named.values():
        if entry.link_group:
            first = first_of.setdefault(entry.link_group, entry)
            if not may_be_one_file(first, entry):
                broken.add(entry.link_group)
    return broken


def may_be_one_file(first: ManifestEntry, other: ManifestEntry) -> bool:
    """Whether two names of a manifest can be those of one file."""
    if stat.S_ISDIR(first.mode):
        return False
    return (first.mode, first.size_bytes, first.sha256, first.target) == (
        other.mode, other.size_bytes, other.sha256, other.target,
    )  # fmt: skip
