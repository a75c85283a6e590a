import time, os
from .conftest import *
from .rig import *
import pytest
pytestmark=[pytest.mark.fuse, pytest.mark.s3]
def test_times(make_fast_host, bucket):
    a,b=make_fast_host("a"),make_fast_host("b")
    a.mount()
    (a.directory/"s"/"d").mkdir(parents=True)
    (a.directory/"s"/"f").write_text("x")
    a.umount(); b.mount()
    (b.directory/"s"/"mine").write_text("x")
    (b.directory/"s"/"d"/"mine").write_text("x")
    b.snapshot("s")
    print({k:bucket.metadata("sessions/s/"+k) for k in ("","d/")})
    print([(e["path"],e["mtime_ns"]) for e in bucket.manifest("s")["entries"]])
    for p in ("s","s/d"): print("b",p,(b.directory/p).stat().st_mtime_ns)
    a.mount()
    for i in range(8):
        for p in ("s","s/d"): print("a",p,(a.directory/p).stat().st_mtime_ns)
        time.sleep(2)
    (b.directory/"s"/"mine2").write_text("x")
    b.wait_until_clean()
    for i in range(4):
        for p in ("s","s/d"): print("a",p,(a.directory/p).stat().st_mtime_ns)
        time.sleep(2)
    print(a.log_tail())
