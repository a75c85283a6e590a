"""What is damaged is said in one line, with a way out; nothing is deleted, and nothing wrong is given."""

from __future__ import annotations

import pytest

from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, UnavailableError, UnsupportedFormatError
from sessionfs.testing.faulty_store import FaultyStore, Truncate

from .hosts import PREFIX, SESSION, Host, away, body_of, drop, put
from .named_bytes import commit, encoded, keep, live, put_named, put_raw, sha

MANIFEST = keys.manifest_key(SESSION)


def put_two_generations(store: FaultyStore) -> None:
    root = put_named(store, "")
    commit(store, root, put_named(store, "f", b"first"), recovery="live")
    keep(store, b"first")
    commit(store, root, put_named(store, "f", b"second"), generation=2, recovery="live")


@pytest.mark.parametrize("raw", [b"torn", b"", b"\x28\xb5\x2f\xfdno zstd", encoded(Manifest("other", 2))])
async def test_an_unreadable_manifest_names_its_key_and_offers_the_newest_intact_generation(
    host: Host, store: FaultyStore, raw: bytes
) -> None:
    put_two_generations(store)
    put_raw(store, MANIFEST, raw)
    before = live(store)
    with pytest.raises(CorruptDataError) as refused:
        await host.hydrator.open_session(SESSION)
    assert MANIFEST in refused.value.message
    assert "\n" not in str(refused.value)
    assert "sessionfs restore STORE s --generation 2" in refused.value.remedy
    put_raw(store, keys.generation_key(SESSION, 2), raw)
    with pytest.raises(CorruptDataError, match="--generation 1"):
        await host.hydrator.open_session(SESSION)
    assert live(store) == before
    assert host.journal.session(SESSION) is None


async def test_a_newer_format_is_no_damage(host: Host, store: FaultyStore) -> None:
    put_two_generations(store)
    put_raw(store, MANIFEST, b'{"format":9}')
    with pytest.raises(UnsupportedFormatError):
        await host.hydrator.open_session(SESSION)


async def test_a_store_that_is_away_meanwhile_leaves_the_first_news(host: Host, store: FaultyStore) -> None:
    put_two_generations(store)
    put_raw(store, MANIFEST, b"torn")
    away(store, "list_page")
    with pytest.raises(CorruptDataError, match="no other generation"):
        await host.hydrator.open_session(SESSION)


async def test_a_manifest_that_comes_short_is_read_again(host: Host, store: FaultyStore) -> None:
    put_two_generations(store)
    store.plan("get", Truncate(10))
    assert (await host.hydrator.open_session(SESSION)).exists


async def test_a_damaged_live_object_is_read_from_where_its_bytes_were_kept(
    host: Host, store: FaultyStore
) -> None:
    put_two_generations(store)
    await host.hydrator.open_session(SESSION)
    put(store, "f", b"sicond", sha256=sha(b"second"))
    keep(store, b"second")
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"second"
    assert [name for name, _ in host.events] == ["session.file.corrupt"]
    assert host.events[0][1]["key"] == PREFIX + "f"
    assert live(store)["f"] == b"sicond"
    assert host.hydrator.problem_of(host.number(b"f")) == ""


async def test_bytes_that_are_nowhere_name_the_file_what_was_tried_and_an_older_generation(
    host: Host, store: FaultyStore
) -> None:
    put_two_generations(store)
    await host.hydrator.open_session(SESSION)
    drop(store, "f")
    for _ in range(2):
        with pytest.raises(CorruptDataError) as refused:
            await host.hydrator.fetch(host.number(b"f"))
    for told in ("s/f of generation 2", PREFIX + "f is", keys.content_key(SESSION, sha(b"second"))):
        assert told in refused.value.message
    assert "--generation 1" in refused.value.remedy
    assert [name for name, _ in host.events] == ["session.file.corrupt"]
    assert host.events[0][1]["path"] == "f"
    assert host.staged() == []


async def test_a_store_that_is_away_is_no_damage(host: Host, store: FaultyStore) -> None:
    commit(store, put_named(store, ""), put_named(store, "f", b"first"))
    await host.hydrator.open_session(SESSION)
    put(store, "f", b"tail")
    away(store, "head")
    with pytest.raises(UnavailableError):
        await host.hydrator.fetch(host.number(b"f"))
    assert host.events == []
    assert host.hydrator.problem_of(host.number(b"f")) == ""


@pytest.mark.parametrize("kept", [b"short", b"longer than it", b"other!"])
async def test_kept_bytes_of_another_length_or_content_are_refused(
    host: Host, store: FaultyStore, kept: bytes
) -> None:
    commit(store, put_named(store, ""), put_named(store, "f", b"wanted"))
    put(store, "f", b"tail")
    put_raw(store, keys.content_key(SESSION, sha(b"wanted")), kept, sha256=sha(b"wanted"))
    await host.hydrator.open_session(SESSION)
    with pytest.raises(CorruptDataError, match="no object holds"):
        await host.hydrator.fetch(host.number(b"f"))
    assert host.staged() == []


async def test_a_note_that_leads_nowhere_is_refused(host: Host, store: FaultyStore) -> None:
    commit(store, put_named(store, ""), put_named(store, "f", b"wanted"))
    put(store, "f", b"tail")
    await host.hydrator.open_session(SESSION)
    for note in (b"torn", b'{"of":"%s","size":6}' % (b"1" * 64)):
        put_raw(store, keys.alias_key(SESSION, sha(b"wanted")), note)
        with pytest.raises(CorruptDataError, match="no object holds"):
            await host.hydrator.fetch(host.number(b"f"))
