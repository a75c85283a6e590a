"""The wheel is complete: typed, licensed, with its commands and its store backends."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    # The sources are linked into a fresh directory: building in place leaves build/ and *.egg-info behind.
    source = tmp_path_factory.mktemp("source")
    for name in ("sessionfs", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    built = subprocess.run(
        [*command, "-w", str(target), str(source)], capture_output=True, text=True, check=False, timeout=240
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = target.glob("sessionfs-*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def _read(wheel: zipfile.ZipFile, ending: str) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(ending))
    return wheel.read(name).decode()


def test_wheel_holds_every_module_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sessionfs").rglob("*.py")}
    assert packed == modules | {"sessionfs/py.typed"}


def test_wheel_carries_the_whole_license(wheel: zipfile.ZipFile) -> None:
    assert _read(wheel, ".dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    metadata = email.message_from_string(_read(wheel, ".dist-info/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"


def test_wheel_metadata_says_what_it_needs(wheel: zipfile.ZipFile) -> None:
    metadata = email.message_from_string(_read(wheel, ".dist-info/METADATA"))
    assert metadata["Name"] == "sessionfs"
    assert metadata["Requires-Python"] == ">=3.11"
    needed = {line.partition(">")[0] for line in metadata.get_all("Requires-Dist", []) if "extra" not in line}
    assert {"boto3", "click", "pyfuse3", "trio"} <= needed
    assert needed.isdisjoint({"pytest", "moto", "hypothesis"})


def test_wheel_installs_both_commands_and_every_store(wheel: zipfile.ZipFile) -> None:
    entries = ConfigParser(delimiters=("=",))
    entries.read_string(_read(wheel, ".dist-info/entry_points.txt"))
    assert set(entries["console_scripts"]) == {"sessionfs", "mount.sessionfs"}
    assert {"file", "s3"} <= set(entries["sessionfs.stores"])
    packed = set(wheel.namelist())
    for section in ("console_scripts", "sessionfs.stores"):
        for target in entries[section].values():
            module = target.partition(":")[0].replace(".", "/")
            assert {f"{module}.py", f"{module}/__init__.py"} & packed
