/*
** A C program on the system's own SQLite that commits through Duralite.
**
**   cc -o example main.c -lsqlite3
**   ./example target/release/libduralite.so app.db
**
** The library is loaded once per process, through any connection; after that every database
** whose URI says vfs=duralite is served by it.
*/
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(sqlite3 *db, const char *what) {
  fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(db));
  exit(1);
}

static void load(const char *library) {
  sqlite3 *db;
  char *message = NULL;
  if (sqlite3_open(":memory:", &db) != SQLITE_OK) fail(db, "open");
  sqlite3_enable_load_extension(db, 1);
  if (sqlite3_load_extension(db, library, NULL, &message) != SQLITE_OK) {
    fprintf(stderr, "load: %s\n", message);
    exit(1);
  }
  sqlite3_close(db); /* the library stays loaded */
}

static int print_row(void *unused, int columns, char **values, char **names) {
  (void)unused;
  (void)names;
  for (int i = 0; i < columns; i++) printf("%s%s", i ? "|" : "", values[i] ? values[i] : "NULL");
  printf("\n");
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s LIBRARY DATABASE\n", argv[0]);
    return 2;
  }
  load(argv[1]);

  /* A name with ? # or % in it must be percent-encoded in a URI. */
  char *uri = sqlite3_mprintf("file:%s?vfs=duralite&journal=nvwal&nvram=emulate", argv[2]);
  sqlite3 *db;
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI;
  if (sqlite3_open_v2(uri, &db, flags, NULL) != SQLITE_OK) fail(db, "open");
  sqlite3_free(uri);

  const char *setup =
      "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS t (a INTEGER, b TEXT)";
  if (sqlite3_exec(db, setup, NULL, NULL, NULL) != SQLITE_OK) fail(db, "set up");

  sqlite3_stmt *insert;
  if (sqlite3_prepare_v2(db, "INSERT INTO t VALUES (?, 'one durable commit')", -1, &insert, NULL) != SQLITE_OK)
    fail(db, "prepare");
  for (int i = 0; i < 100; i++) {
    sqlite3_bind_int(insert, 1, i);
    if (sqlite3_step(insert) != SQLITE_DONE) fail(db, "insert");
    sqlite3_reset(insert);
  }
  sqlite3_finalize(insert);

  /* The pragma returns one text, with a line for each name and its value. */
  if (sqlite3_exec(db, "PRAGMA duralite", print_row, NULL, NULL) != SQLITE_OK) fail(db, "PRAGMA duralite");
  if (sqlite3_exec(db, "SELECT count(*) FROM t", print_row, NULL, NULL) != SQLITE_OK) fail(db, "count");

  /* The last connection that closes leaves one plain SQLite file. */
  if (sqlite3_close(db) != SQLITE_OK) fail(db, "close");
  return 0;
}
