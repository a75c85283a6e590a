"""What other hosts change, and both halves together."""

from __future__ import annotations

import os
import stat

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model.errors import UnavailableError
from sessionfs.replication.hydration.comparison import Differences
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, Interfere
from sessionfs.working_copy.journal_tree import SessionRow

from .hosts import LINK, PREFIX, SESSION, Host, body_of, drop, put, put_session


async def test_nothing_changed_is_nothing_reported(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files, found.foreign) == ([], [], True)
    assert [method for method, _ in store.calls] == ["get", "list_page"]
    assert (await host.hydrator.refresh_session("unknown")).foreign


async def test_a_known_manifest_is_not_read_again(host: Host, other: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.upload()
    host.commit()
    await other.hydrator.open_session(SESSION)
    put(store, "new", b"x")
    store.calls.clear()
    assert (await other.hydrator.refresh_session(SESSION)).directories == [other.number(b"")]
    assert [method for method, _ in store.calls] == ["head", "list_page", "head"]
    row = other.journal.session(SESSION)
    assert row is not None
    assert row.generation == 1


async def test_new_names_changed_files_and_vanished_ones_are_reported(host: Host, store: FaultyStore) -> None:
    put_session(store)
    put(store, "gone/deep/f", b"abc")
    await host.hydrator.open_session(SESSION)
    root, file, link = host.number(b""), host.number(b"d/f"), host.number(b"l")
    put(store, "d/f", b"changed", mode=stat.S_IFREG | 0o600)
    put(store, "l", b"elsewhere", mode=LINK)
    put(store, "new/", mode=stat.S_IFDIR | 0o711)
    put(store, "new/f", b"new")
    drop(store, "gone/deep/f")
    found = await host.hydrator.refresh_session(SESSION)
    assert set(found.files) == {file, link}
    assert root in found.directories
    assert host.number(b"new") in found.directories
    node = host.journal.node(file)
    assert node is not None
    assert (node.size_bytes, stat.S_IMODE(node.mode)) == (7, 0o600)
    target = host.journal.node(link)
    assert target is not None
    assert target.target == b"elsewhere"
    assert host.journal.resolve(SESSION, b"gone") is None
    assert host.journal.objects_below(PREFIX + "gone/") == []
    assert body_of(host, await host.hydrator.fetch(file)) == b"changed"
    again = await host.hydrator.refresh_session(SESSION)
    assert (again.directories, again.files) == ([], [])


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_nobody_heard_is_made_good_by_the_next_answer(
    host: Host, store: FaultyStore, *, is_restarted: bool
) -> None:
    put_session(store)
    heard = (await host.hydrator.open_session(SESSION)).version
    await host.materialise()
    put(store, "new", b"x")
    put(store, "d/", mode=stat.S_IFDIR | 0o711)
    lost = await host.hydrator.refresh_session(SESSION, heard)
    assert host.number(b"") in lost.directories
    if is_restarted:
        host.hydrator = host.new_hydrator()
    found = await host.hydrator.refresh_session(SESSION, heard)
    assert sorted(found.directories) == sorted([host.number(b""), host.number(b"d")])
    described = {entry.number: stat.S_IMODE(entry.mode) for entry in found.attributes}
    # Which attributes changed is not remembered across a restart; of the others the disk may know more than the journal.
    assert described == ({} if is_restarted else {host.number(b"d"): 0o711})
    assert is_restarted or found.paths[host.number(b"d")] == b"s/d"
    again = await host.hydrator.refresh_session(SESSION, found.version)
    assert (again.directories, again.attributes, again.version) == ([], [], found.version)


async def test_what_was_begun_and_not_finished_is_made_good_by_the_next_answer(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_session(store)
    heard = (await host.hydrator.open_session(SESSION)).version
    take = host.hydrator._news.take

    async def interrupted(row: SessionRow) -> Differences:
        await take(row)
        raise UnavailableError("the last request of a comparison")

    put(store, "new", b"x")
    monkeypatch.setattr(host.hydrator._news, "take", interrupted)
    with pytest.raises(UnavailableError):
        await host.hydrator.refresh_session(SESSION, heard)
    monkeypatch.undo()
    found = await host.hydrator.refresh_session(SESSION, heard)
    assert host.number(b"") in found.directories


async def test_old_bytes_on_this_disk_are_dropped_first(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    file, before = host.number(b"d/f"), host.journal.object(PREFIX + "d/f")
    put(store, "d/f", b"changed")
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == [file]
    assert host.journal.object(PREFIX + "d/f") == before
    store.calls.clear()
    assert (await host.new_hydrator().refresh_session(SESSION)).files == [file]
    assert (await host.hydrator.refresh_session(SESSION)).files == [file]
    assert [method for method, _ in store.calls].count("head") == 1
    host.evict([file])
    fetched = await host.hydrator.fetch(file)
    assert body_of(host, fetched) == b"changed"
    assert fetched.entry.size_bytes == 7
    assert (await host.hydrator.refresh_session(SESSION)).files == []


async def test_evicted_old_bytes_are_replaced_by_a_comparison_too(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    file = host.number(b"d/f")
    put(store, "d/f", b"changed")
    host.evict((await host.hydrator.refresh_session(SESSION)).files)
    assert (await host.hydrator.refresh_session(SESSION)).files == [file]
    known = host.journal.object(PREFIX + "d/f")
    assert known is not None
    assert known.token == store.head(PREFIX + "d/f").token


async def test_what_vanished_and_is_on_this_disk_goes_in_two_steps(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    for path in ("d/f", "d/", "l"):
        drop(store, path)
    found = await host.hydrator.refresh_session(SESSION)
    assert set(found.files) == {host.number(b"d"), host.number(b"d/f"), host.number(b"l")}
    assert found.paths == {host.number(path): b"s/" + path for path in (b"d", b"d/f", b"l")}
    host.evict(found.files)
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == []
    assert host.number(b"") in found.directories
    assert host.journal.resolve(SESSION, b"d") is None
    assert host.journal.children(host.number(b"")) == []
    assert not host.is_on_disk(b"d")


async def test_attributes_of_a_directory_on_this_disk_are_told(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    put(store, "d/", mode=stat.S_IFDIR | 0o711)
    assert (await host.hydrator.refresh_session(SESSION)).attributes == []
    await host.materialise()
    put(store, "d/", mode=stat.S_IFDIR | 0o750)
    found = await host.hydrator.refresh_session(SESSION)
    assert [(entry.number, stat.S_IMODE(entry.mode)) for entry in found.attributes] == [
        (host.number(b"d"), 0o750)
    ]
    assert found.paths == {host.number(b"d"): b"s/d"}
    assert (await host.hydrator.refresh_session(SESSION)).attributes == []


@pytest.mark.parametrize(("before", "after"), [(b"d/f", b"l"), (b"l", b"d/f")])
async def test_a_name_of_another_kind_gets_another_number(
    host: Host, store: FaultyStore, before: bytes, after: bytes
) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    number = host.number(before)
    if after == b"l":
        put(store, before.decode(), b"elsewhere", mode=LINK)
    else:
        put(store, before.decode(), b"a file now")
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == [number]
    host.evict(found.files)
    await host.hydrator.refresh_session(SESSION)
    entry = host.journal.entry(b"x", host.number(before))
    assert entry is not None
    assert entry.number != number
    assert stat.S_ISLNK(entry.mode) == (after == b"l")
    assert not entry.present
    assert host.journal.node(number) is None
    await host.materialise()
    assert (await host.hydrator.refresh_session(SESSION)).files == []


async def test_an_attribute_change_that_keeps_the_token_is_seen(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    memory = store.inner
    assert isinstance(memory, MemoryStore)
    token = store.head(PREFIX + "d/f").token
    put(store, "d/f", b"abc", mode=stat.S_IFREG | 0o400)
    stored = memory._contents.objects[PREFIX + "d/f"]
    object.__setattr__(stored.stat, "token", token)
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == [host.number(b"d/f")]
    node = host.journal.node(host.number(b"d/f"))
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o400
    store.calls.clear()
    assert (await host.hydrator.refresh_session(SESSION)).files == []
    assert [method for method, _ in store.calls].count("head") == 0


async def test_what_is_owed_here_is_not_compared(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    before = host.journal.object(PREFIX + "d/f")
    host.journal.mark(PREFIX + "d/f", SESSION, 1)
    host.journal.begin_attempt("w9", PREFIX + "l")
    host.journal.mark(PREFIX + "born", SESSION, 1)
    put(store, "d/f", b"changed")
    put(store, "born", b"late put")
    drop(store, "l")
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files) == ([], [])
    assert host.journal.object(PREFIX + "d/f") == before
    assert host.journal.resolve(SESSION, b"l") is not None
    assert host.journal.resolve(SESSION, b"born") is None


async def test_what_vanishes_from_a_session_written_here_stays_on_this_disk(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.upload()
    drop(store, "f")
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files, found.foreign) == ([], [], False)
    assert host.journal.object(PREFIX + "f") is not None
    assert host.read(b"f") == b"abc"


async def test_what_changes_here_during_a_comparison_is_left_alone(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    put(store, "d/f", b"changed")
    put(store, "born", b"theirs")
    # The first request is the manifest's; what is done here meanwhile is newer than what was read before it.
    store.plan("list_page", Interfere(lambda: None))
    real = host.hydrator._reader.survey

    async def survey_slowly(session: object, **how: object) -> object:
        result = await real(session, **how)  # type: ignore[arg-type]
        host.journal.mark(PREFIX + "d/f", SESSION, 1)
        host.journal.put_node(99, mode=stat.S_IFREG | 0o644, present=True)
        host.journal.link(host.number(b""), b"born", 99)
        return result

    host.hydrator._reader.survey = survey_slowly  # type: ignore[method-assign, assignment]
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files) == ([], [])
    assert host.number(b"born") == 99
    assert host.journal.object(PREFIX + "born") is None


async def test_an_emptied_bucket_takes_nothing_from_this_disk(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    for path in ("", "d/", "d/f", "l"):
        drop(store, path)
    for _ in range(2):
        found = await host.hydrator.refresh_session(SESSION)
        assert (found.directories, found.files) == ([], [])
    assert [name for name, _ in host.events] == ["session.bucket.emptied"]
    assert host.read(b"d/f") == b"abc"


async def test_a_session_that_went_elsewhere_is_forgotten_when_nothing_of_it_is_here(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    for path in ("", "d/", "d/f", "l"):
        drop(store, path)
    found = await host.hydrator.refresh_session(SESSION)
    assert 1 in found.directories
    assert host.journal.session(SESSION) is None
    assert not (await host.hydrator.open_session(SESSION)).exists


async def test_a_new_session_here_is_not_taken_for_a_removed_one(host: Host) -> None:
    host.make(b"")
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files, found.foreign) == ([], [], False)
    assert (await host.hydrator.open_session(SESSION)).exists


async def test_a_directory_without_a_marker_gets_one_later(host: Host, store: FaultyStore) -> None:
    put(store, "d/f", b"abc")
    await host.hydrator.open_session(SESSION)
    directory = host.number(b"d")
    put(store, "d/", mode=stat.S_IFDIR | 0o711)
    assert host.journal.object(PREFIX + "d/") is None
    found = await host.hydrator.refresh_session(SESSION)
    assert found.directories == [directory]
    node = host.journal.node(directory)
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o711
    drop(store, "d/")
    await host.hydrator.refresh_session(SESSION)
    assert host.number(b"d/f") >= FIRST_REMOTE_NUMBER


# --- both halves


async def test_another_host_sees_the_tree_that_was_committed(host: Host, other: Host) -> None:
    for path, body in (
        (b"", None),
        (b"empty", None),
        (b"d", None),
        (b"d/\xff %", b"odd"),
        (b"one", b"linked"),
    ):
        host.make(path, body)
    host.make(b"l", target=b"d/\xff")
    os.link(host.disk(b"one"), host.disk(b"two"))
    host.journal.link(host.number(b""), b"two", host.number(b"one"))
    host.journal.mark(PREFIX + "two", SESSION, 1)
    os.setxattr(host.disk(b"one"), "user.mime", b"\x00\xff")
    os.utime(host.disk(b"one"), ns=(0, 1_234_567_890_123_456_789))
    os.chmod(host.disk(b"empty"), 0o1770)
    host.upload()
    host.commit()
    assert (await other.hydrator.open_session(SESSION)).exists
    await other.materialise()
    for path in (b"", b"empty", b"d", b"d/\xff %", b"one", b"two", b"l"):
        mine, theirs = os.lstat(host.disk(path)), os.lstat(other.disk(path))
        assert (mine.st_mode, mine.st_mtime_ns) == (theirs.st_mode, theirs.st_mtime_ns), path
    assert os.readlink(other.disk(b"l")) == b"d/\xff"
    assert os.getxattr(other.disk(b"two"), "user.mime") == b"\x00\xff"
    assert os.lstat(other.disk(b"one")).st_ino == os.lstat(other.disk(b"two")).st_ino
    assert other.number(b"one") == other.number(b"two")


async def test_a_linked_name_that_another_host_replaced_becomes_a_file_of_its_own(
    host: Host, other: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"one", b"linked")
    host.journal.link(host.number(b""), b"two", host.number(b"one"))
    os.link(host.disk(b"one"), host.disk(b"two"))
    host.journal.mark(PREFIX + "two", SESSION, 1)
    host.upload()
    host.commit()
    await other.hydrator.open_session(SESSION)
    assert other.number(b"one") == other.number(b"two")
    put(store, "two", b"own")
    await other.hydrator.refresh_session(SESSION)
    assert other.number(b"one") != other.number(b"two")
    assert body_of(other, await other.hydrator.fetch(other.number(b"one"))) == b"linked"
    assert body_of(other, await other.hydrator.fetch(other.number(b"two"))) == b"own"


async def test_a_later_generation_tells_attributes_that_no_object_has(host: Host, other: Host) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.upload()
    await other.hydrator.open_session(SESSION)
    os.setxattr(host.disk(b"f"), "user.a", b"b")
    host.commit()
    await other.hydrator.refresh_session(SESSION)
    fetched = await other.hydrator.fetch(other.number(b"f"))
    assert fetched.entry.xattrs == {b"user.a": b"b"}
    row = other.journal.session(SESSION)
    assert row is not None
    assert row.generation == 1


async def test_a_session_that_another_host_removed_goes(host: Host, other: Host) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.upload()
    host.commit()
    await other.hydrator.open_session(SESSION)
    await other.materialise()
    for name in (b"f", b""):
        number = host.number(name)
        parent = host.number(b"") if name else 1
        (os.unlink if name else os.rmdir)(host.disk(name))
        host.note(Operation.UNLINK if name else Operation.RMDIR, number, parent=parent, name=name or b"s")
    host.upload()
    host.commit(removed=True)
    for _ in range(3):
        found = await other.hydrator.refresh_session(SESSION)
        other.evict(found.files)
    assert other.journal.session(SESSION) is None
    assert not (await other.hydrator.open_session(SESSION)).exists
    assert not other.is_on_disk()


async def test_a_file_all_of_whose_names_changed_alike_stays_one_file(host: Host, other: Host) -> None:
    host.make(b"")
    host.make(b"one", b"linked")
    os.link(host.disk(b"one"), host.disk(b"two"))
    host.journal.link(host.number(b""), b"two", host.number(b"one"))
    host.journal.mark(PREFIX + "two", SESSION, 1)
    host.upload()
    host.commit()
    await other.hydrator.open_session(SESSION)
    number = other.number(b"one")
    host.write(b"one", b"linked and longer")
    for name in ("one", "two"):
        host.journal.mark(PREFIX + name, SESSION, 1)
    host.upload()
    host.commit()
    found = await other.hydrator.refresh_session(SESSION)
    assert found.files == [number]
    assert other.number(b"one") == other.number(b"two") == number
    assert body_of(other, await other.hydrator.fetch(number)) == b"linked and longer"


async def test_a_file_that_became_a_directory_changes_its_kind(host: Host, store: FaultyStore) -> None:
    put(store, "x", b"a file")
    put(store, "y/", mode=stat.S_IFDIR | 0o755)
    await host.hydrator.open_session(SESSION)
    drop(store, "x")
    drop(store, "y/")
    put(store, "x/", mode=stat.S_IFDIR | 0o755)
    put(store, "x/inside", b"new")
    put(store, "y", b"a file")
    await host.hydrator.refresh_session(SESSION)
    kinds = {path: host.journal.node(host.number(path)) for path in (b"x", b"x/inside", b"y")}
    assert [node is not None and node.is_directory for node in kinds.values()] == [True, False, False]


async def test_a_name_of_this_disk_is_not_replaced_by_a_new_object(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    os.mkdir(host.disk())
    number = host.make(b"local", b"ours")
    for work in host.journal.all_work():
        host.journal.finish_work(work.key, work.version)
    put(store, "local", b"theirs")
    put(store, "local2/f", b"beside")
    found = await host.hydrator.refresh_session(SESSION)
    assert number not in found.files
    assert host.journal.object(PREFIX + "local") is None
    assert host.number(b"local") == number


async def test_an_object_that_vanished_after_its_name_did_is_forgotten(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    host.journal.unlink(host.number(b"d"), b"f")
    drop(store, "d/f")
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files) == ([], [])
    assert host.journal.object(PREFIX + "d/f") is None


async def test_a_session_forgotten_during_a_comparison_is_not_written(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    put(store, "d/f", b"changed")
    real = host.hydrator._reader.survey

    async def survey_and_forget(session: object, **how: object) -> object:
        result = await real(session, **how)  # type: ignore[arg-type]
        host.journal.remove_session(SESSION)
        return result

    host.hydrator._reader.survey = survey_and_forget  # type: ignore[method-assign, assignment]
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files, found.foreign) == ([], [], True)
