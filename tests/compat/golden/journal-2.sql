BEGIN TRANSACTION;
CREATE TABLE attempts (
    write_id TEXT PRIMARY KEY, key TEXT NOT NULL, sent_ns INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO "attempts" VALUES('w2','sessions/s/',1790000000000000000,0);
CREATE TABLE bases (
    key TEXT NOT NULL, token TEXT NOT NULL, write_id TEXT NOT NULL, sent_ns INTEGER NOT NULL, PRIMARY KEY (key, token)
) WITHOUT ROWID;
INSERT INTO "bases" VALUES('sessions/s/f%FF','t0','w0',9);
CREATE TABLE blocks (sha256 TEXT PRIMARY KEY, hashes BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "blocks" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',X'DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD');
CREATE TABLE conflicts (
    key TEXT PRIMARY KEY, session TEXT NOT NULL, path BLOB NOT NULL, live_key TEXT NOT NULL,
    kept_at TEXT NOT NULL, holder TEXT NOT NULL, reason TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
INSERT INTO "conflicts" VALUES('sessions/s.conflicts/f/20260131T235959.123456Z-y','s',X'66FF','sessions/s/f%FF','2026-09-21T14:13:20.000000Z','y','');
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, at TEXT NOT NULL, fields TEXT NOT NULL);
INSERT INTO "events" VALUES(1,'session.file.created','2026-09-21T14:13:20.000000Z','{"session_id": "s"}');
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO "meta" VALUES('log_position','17');
CREATE TABLE names (
    parent INTEGER NOT NULL, name BLOB NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) WITHOUT ROWID;
INSERT INTO "names" VALUES(1,X'73',10);
INSERT INTO "names" VALUES(10,X'66FF',11);
CREATE TABLE nodes (
    number INTEGER PRIMARY KEY,
    mode INTEGER NOT NULL,
    uid INTEGER NOT NULL DEFAULT 0,
    gid INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    mtime_ns INTEGER NOT NULL DEFAULT 0,
    present INTEGER NOT NULL DEFAULT 1,
    reserved INTEGER NOT NULL DEFAULT 0,
    target BLOB NOT NULL DEFAULT x'',
    xattrs BLOB NOT NULL DEFAULT x'',
    writers INTEGER NOT NULL DEFAULT 0,
    sha256 TEXT NOT NULL DEFAULT '',
    clean_size INTEGER NOT NULL DEFAULT -1,
    clean_mtime_ns INTEGER NOT NULL DEFAULT 0,
    clean_ctime_ns INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "nodes" VALUES(10,16877,0,0,0,0,1,0,X'',X'',0,'',-1,0,0);
INSERT INTO "nodes" VALUES(11,33188,0,0,3,0,1,0,X'',X'',0,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',-1,0,0);
CREATE TABLE objects (
    key TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    token TEXT NOT NULL,
    write_id TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    lineage TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    named INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO "objects" VALUES('sessions/s/f%FF',11,'t1','w1','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',3,33188,1000,1001,7,'l1',4,1);
CREATE TABLE prefixes (
    key TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL, proven INTEGER NOT NULL,
    PRIMARY KEY (key, sha256, size)
) WITHOUT ROWID;
INSERT INTO "prefixes" VALUES('sessions/s/f%FF','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',2,1);
INSERT INTO "prefixes" VALUES('sessions/s/f%FF','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',1,0);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    root INTEGER NOT NULL,
    known INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    manifest_token TEXT NOT NULL DEFAULT '',
    committed_at TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    owner_state TEXT NOT NULL DEFAULT '',
    owner_token TEXT NOT NULL DEFAULT '',
    holder TEXT NOT NULL DEFAULT '',
    recovery TEXT NOT NULL DEFAULT '',
    turn INTEGER NOT NULL DEFAULT 0,
    tree_of INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('s',10,1,1,1,4,'m','',4,'held','o','h','committed',2,0);
CREATE TABLE work (
    key TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    first_owed_ns INTEGER NOT NULL,
    changed_ns INTEGER NOT NULL,
    not_before_ns INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'owed',
    reason TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
INSERT INTO "work" VALUES('sessions/s/','s',5,5,0,0,0,0,'owed','');
CREATE INDEX names_by_number ON names (number);
CREATE INDEX objects_by_number ON objects (number);
CREATE INDEX objects_by_sha256 ON objects (sha256);
CREATE INDEX work_by_age ON work (held, first_owed_ns);
CREATE INDEX work_by_session ON work (session);
CREATE INDEX attempts_by_key ON attempts (key);
COMMIT;
