-- From the project's root:  sqlite3 < examples/shell/load.sql
.load target/release/libduralite
-- A database that was opened before the load stays on its old VFS.
.open 'file:example.db?vfs=duralite&journal=nvwal&nvram=emulate'
PRAGMA journal_mode=WAL;
PRAGMA synchronous=FULL;
CREATE TABLE t (a INTEGER, b TEXT);
INSERT INTO t VALUES (1, 'one durable commit');
INSERT INTO t VALUES (2, 'and another');
PRAGMA duralite;
-- `.open` closes the database, which makes it a plain file again, and opens it without Duralite.
.open example.db
SELECT count(*) FROM t;
