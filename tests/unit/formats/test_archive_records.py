"""Records of the archive: what is written, what is read, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats.archive.records import (
    BLOCK_BYTES,
    MAX_FILES,
    ArchivedFile,
    BegunFile,
    ManifestRecord,
    PointerRecord,
    UploadedRecord,
    crc,
    decode_manifest,
    decode_pointer,
    decode_uploaded,
    encode,
    sha256_of,
)
from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError

EMPTY = hashlib.sha256().hexdigest()
FIRST = "0000000001-" + "a" * 32
READERS: tuple[Callable[[bytes, str], object], ...] = (decode_manifest, decode_pointer, decode_uploaded)


def _file(path: str = "log", generation: str = "b", **fields: object) -> ArchivedFile:
    empty = ArchivedFile(path=path, size=0, generation=generation * 32, sha256=EMPTY)
    return msgspec.structs.replace(empty, **fields)


def _manifest(*files: ArchivedFile) -> ManifestRecord:
    return ManifestRecord(session="s1", checkpoint=FIRST, number=1, files=files)


POINTER = PointerRecord(session="s1", checkpoint=FIRST, number=1, manifest_sha256=EMPTY)
BLOCK = bytes(BLOCK_BYTES)
MANIFEST = _manifest(
    _file(size=BLOCK_BYTES + 3, block_crcs=crc(BLOCK), tail_checkpoint=FIRST, is_private=True)
)


def test_the_bytes_of_each_record_are_those_of_format_1() -> None:
    file = (
        '{"block_crcs":"15eO6w==","generation":"' + "b" * 32 + '","is_private":true,"path":"log",'
        f'"sha256":"{EMPTY}","size":65539,"tail_checkpoint":"{FIRST}"}}'
    )
    manifest = (
        f'{{"checkpoint":"{FIRST}","created_at":"","files":[{file}],"format":1,"number":1,'
        '"previous":"","session":"s1"}'
    )
    assert encode(MANIFEST).decode() == manifest
    assert encode(POINTER).decode() == (
        f'{{"checkpoint":"{FIRST}","format":1,"manifest_sha256":"{EMPTY}","number":1,"session":"s1"}}'
    )
    begun = BegunFile(path="log", generation="c" * 32, blocks=7)
    assert encode(UploadedRecord(session="s1", manifest=MANIFEST, begun=(begun,))).decode() == (
        f'{{"begun":[{{"blocks":7,"generation":"{"c" * 32}","path":"log"}}],"format":1,'
        f'"manifest":{manifest},"session":"s1"}}'
    )


def test_a_record_is_read_as_it_was_written_and_unknown_fields_are_accepted() -> None:
    uploaded = UploadedRecord(
        session="s1", manifest=MANIFEST, begun=(BegunFile(path="x", generation="c" * 32, blocks=7),)
    )
    assert decode_manifest(encode(MANIFEST), "k") == MANIFEST
    assert decode_pointer(encode(POINTER), "k") == POINTER
    assert decode_uploaded(encode(uploaded), "k") == uploaded
    assert decode_pointer(encode(POINTER)[:-1] + b',"later":{"x":1}}', "k") == POINTER
    read_again = decode_uploaded(encode(uploaded), "k").manifest
    assert read_again is not None
    assert sha256_of(encode(read_again)) == sha256_of(encode(MANIFEST))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("found", [0, 2, 99])
def test_another_format_is_refused_whatever_else_is_there(
    read: Callable[[bytes, str], object], found: int
) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        read(b'{"format":%d,"files":7}' % found, "the key")
    assert (caught.value.name, caught.value.found, caught.value.supported) == ("the key", found, 1)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"{}", b'{"format":1}', b'{"format":"1"}', b"\xff"]
)
def test_what_is_no_record_is_corrupt(read: Callable[[bytes, str], object], raw: bytes) -> None:
    with pytest.raises(CorruptDataError, match="the key"):
        read(raw, "the key")


@pytest.mark.parametrize(
    "files",
    [
        (_file("../x"),),
        (_file("/x"),),
        (_file("a//b"),),
        (_file("a/."),),
        (_file(""),),
        (_file("a\\b"),),
        (_file("a\0"),),
        (_file("b", "b"), _file("a", "c")),
        (_file("a", "b"), _file("a", "c")),
        (_file("a", "b"), _file("a/b", "c")),
        (_file("a", "b"), _file("b", "b")),
        (_file(size=BLOCK_BYTES),),
        (_file(block_crcs=b"1234"),),
        (_file(size=1),),
        (_file(tail_checkpoint=FIRST),),
        (_file(tail_checkpoint="latest"),),
        (_file(tail_checkpoint=FIRST + "\n", size=1),),
        (_file(generation="B"),),
        (_file(generation="/../"),),
        (_file(sha256="x"),),
        (_file(size=-1),),
        tuple(_file(f"{number:03d}", "b") for number in range(MAX_FILES + 1)),
    ],
)
def test_a_manifest_that_contradicts_itself_is_corrupt_wherever_it_is(
    files: tuple[ArchivedFile, ...],
) -> None:
    with pytest.raises(CorruptDataError):
        decode_manifest(encode(_manifest(*files)), "k")
    with pytest.raises(CorruptDataError):
        decode_uploaded(encode(UploadedRecord(session="s1", manifest=_manifest(*files))), "k")


def test_a_path_that_is_no_text_is_corrupt() -> None:
    raw = encode(_manifest(_file("PATH"))).replace(b"PATH", b"\\ud800")
    with pytest.raises(CorruptDataError):
        decode_manifest(raw, "k")


def test_files_in_order_are_accepted_whatever_characters_are_in_their_names() -> None:
    paths = sorted(["a/b", "a-b", "a.b/c", "a/b.c", "b", "\u00e4", "a/c/d"], key=lambda path: path.split("/"))
    manifest = _manifest(*(_file(path, f"{number}") for number, path in enumerate(paths)))
    assert decode_manifest(encode(manifest), "k") == manifest


def test_a_block_is_known_by_its_length_and_its_sum() -> None:
    blocks = [bytes([number]) * BLOCK_BYTES for number in range(3)]
    file = _file(size=3 * BLOCK_BYTES, block_crcs=b"".join(map(crc, blocks)))
    assert [file.is_block(index, blocks[index]) for index in range(3)] == [True] * 3
    assert not file.is_block(0, blocks[1])
    assert not file.is_block(0, blocks[0][:-1])
    assert (file.blocks, file.tail_bytes) == (3, 0)


@given(st.binary(max_size=200), st.integers(0, 2), st.integers(0, 400), st.integers(0, 40))
def test_whatever_the_bytes_are_only_the_two_errors_leave_the_readers(
    noise: bytes, which: int, start: int, length: int
) -> None:
    records = (MANIFEST, POINTER, UploadedRecord(session="s1", manifest=MANIFEST))
    whole = encode(records[which])
    for raw in (noise, whole[:start] + noise + whole[start + length :]):
        with suppress(CorruptDataError, UnsupportedFormatError):
            READERS[which](raw, "k")
