"""The examples of the page run as they stand; so does the blocking form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sessionfs.model.errors import (
    AlreadyExistsError,
    BucketNotFoundError,
    HandleClosedError,
    NotFoundError,
    StoreUrlError,
)
from sessionfs.sessions.archive.opening import open_archive, open_blocking_archive

PAGE = Path(__file__).parents[4] / "docs" / "python" / "archive.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(2))
def test_an_example_of_the_page_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(EXAMPLES) == 2
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[number], str(PAGE), "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's
    assert {path.name for path in tmp_path.glob("restored*")}
    assert [path.name for path in (tmp_path / "bucket").iterdir() if not path.name.startswith(".")] == [
        "archive"
    ]


def test_the_blocking_form_gives_what_the_asynchronous_one_gives(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "log").write_bytes(b"x")
    with open_blocking_archive(str(tmp_path / "store")) as archive:
        assert archive.latest("s") is None
        with pytest.raises(NotFoundError):
            archive.restore("s", str(tmp_path / "restored"))
        first = archive.publish("s", str(files))
        (files / "log").write_bytes(b"xy")
        assert archive.publish("s", str(files), ["log"]).previous == first.id
        archive.restore("s", str(tmp_path / "restored"), checkpoint=first.id)
        with pytest.raises(AlreadyExistsError):
            archive.restore("s", str(tmp_path / "restored"))
    assert (tmp_path / "restored" / "log").read_bytes() == b"x"
    with pytest.raises(HandleClosedError):
        archive.latest("s")


async def test_an_archive_in_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUrlError):
        async with open_archive("nosuch://bucket"):
            pass
    with pytest.raises(BucketNotFoundError):
        async with open_archive(str(tmp_path / "missing" / "store")):
            pass
