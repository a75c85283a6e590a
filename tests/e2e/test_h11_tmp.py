import os, time, subprocess, random
import pytest
from .conftest import MakeHost
pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]
def test_figures(make_fast_host: MakeHost) -> None:
    w = make_fast_host("writer"); w.mount()
    (w.directory / "s").mkdir()
    (w.directory / "s" / "large").write_bytes(random.Random(1).randbytes(200 << 20))
    w.umount()
    def cat(p):
        f = open(p, "rb", buffering=0); n = 0
        last = t = time.monotonic(); slow = []
        while b := f.read(1 << 20):
            n += len(b)
            now = time.monotonic()
            if now - last > 0.05: slow.append((n >> 20, round(now - last, 2)))
            last = now
        assert n == 200 << 20
        print("slow", slow)
        f.close()
    for how in ("cat1", "whole", "cat2"):
        h = make_fast_host(how); h.mount()
        p = h.directory / "s" / "large"; os.stat(p)
        t = time.monotonic()
        if how == "whole":
            f = open(p, "r+b", buffering=0); f.close()
            print("FIG open", how, time.monotonic() - t)
        cat(p)
        print("FIG", how, time.monotonic() - t)
        h.umount()
