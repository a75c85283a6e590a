"""From one store to another: survey, copy, verify, switch.

May import ``replication`` and everything below it; imported by ``daemon`` and ``cli``. The order of a run, so that a run that stops anywhere leaves
nothing that looks complete, and the next one goes on:

1. ``survey``: both stores are listed, the destination's journal is read, and whatever must be refused is refused. Nothing was written yet.
2. ``journal``: ``migration.json`` says "copying"; a page names what is about to be written.
3. ``copying``: of each session, what the source no longer has is removed; then come the bytes, then its generations, then ``manifest.json``, then
   the marker of its last commit. Every object is read back and compared.
4. The source is listed again: it did not change. The destination is listed again: it is exactly what was read back.
5. ``sessions.json``, then ``migration.json`` says "complete", with the checksum.
6. ``switch``: ``session-store.json`` names the destination.
"""
