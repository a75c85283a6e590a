BEGIN TRANSACTION;
CREATE TABLE attempts (
    write_id TEXT PRIMARY KEY, key TEXT NOT NULL, sent_ns INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO "attempts" VALUES('w2','sessions/s/',1700000000000000000,0);
CREATE TABLE conflicts (
    key TEXT PRIMARY KEY, session TEXT NOT NULL, path BLOB NOT NULL, live_key TEXT NOT NULL,
    kept_at TEXT NOT NULL, holder TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "conflicts" VALUES('sessions/s.conflicts/f/x-y','s',X'66FF','sessions/s/f%FF','2023-11-14T22:13:20.000000Z','y');
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, at TEXT NOT NULL, fields TEXT NOT NULL);
INSERT INTO "events" VALUES(1,'session.file.created','2023-11-14T22:13:20.000000Z','{"path": "f"}');
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
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
INSERT INTO "nodes" VALUES(11,33188,1000,1000,3,5,1,0,X'',X'',0,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',-1,0,0);
CREATE TABLE objects (
    key TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    token TEXT NOT NULL,
    write_id TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    lineage TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "objects" VALUES('sessions/s/f%FF',11,'t1','wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',3,33188,1000,1000,5,'llllllllllllllllllllllllllllllll');
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    root INTEGER NOT NULL,
    known INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    manifest_token TEXT NOT NULL DEFAULT '',
    committed_at TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('s',10,1,1,1,4,'m','2026-01-31T23:59:59.123456Z');
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
INSERT INTO "work" VALUES('sessions/s/','s',7,7,0,0,0,0,'owed','');
CREATE INDEX names_by_number ON names (number);
CREATE INDEX objects_by_number ON objects (number);
CREATE INDEX objects_by_sha256 ON objects (sha256);
CREATE INDEX work_by_age ON work (held, first_owed_ns);
CREATE INDEX attempts_by_key ON attempts (key);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',1);
COMMIT;
