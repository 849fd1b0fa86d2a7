/*
** duralite.h - C interface of libduralite, a VFS for stock SQLite with fast durable commits.
**
** Call duralite_enable() once per process, before the first database is opened. Then open
** databases with "file:NAME?vfs=duralite&strict=on" and SQLITE_OPEN_URI, and set WAL mode by
** PRAGMA journal_mode=WAL. With strict=on, a database that plain SQLite would have to serve is an error.
*/
#ifndef DURALITE_H
#define DURALITE_H

#include <sqlite3.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3_api_routines;

/* For sqlite3_auto_extension(): registers the VFS "duralite". duralite_enable() calls it. */
int sqlite3_duralite_auto(sqlite3 *db, char **message, const struct sqlite3_api_routines *api);

/* The reason of the last refusal in the calling thread, or else in the process; NULL if there was none.
** The text stays valid until the thread's next refusal or its next call of this function. */
const char *duralite_last_error(void);

/* The number of the calling thread's last refusal; 0 if it had none. Refusals are counted over the process. */
uint64_t duralite_last_refusal(void);

/* Registers the VFS "duralite" in this process. Further calls do no harm. Returns SQLITE_OK, or
** the code with which SQLite refused; duralite_last_error() may give the reason. */
static inline int duralite_enable(void) {
  void (*entry)(void) = (void (*)(void))sqlite3_duralite_auto;
  sqlite3 *db = 0;
  int code = sqlite3_auto_extension(entry);
  if (code != SQLITE_OK) return code;
  code = sqlite3_open(":memory:", &db);
  sqlite3_close(db);
  sqlite3_cancel_auto_extension(entry);
  return code;
}

/* How often a transaction of duralite_run() may lose to others. After that it begins with the write lock. */
#define DURALITE_CONFLICTS 5

/* Runs work(db, argument) as a transaction, and commits it. If the transaction loses to another
** connection (SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT), it is rolled back, and `work` runs again after a
** short random pause. After five conflicts the transaction begins with BEGIN IMMEDIATE and can no
** longer lose. On any other code it is rolled back, and the code is returned. If COMMIT returned
** that code, the transaction may be committed or not. `work` returns SQLITE_OK to commit. It may run
** several times, so it should change nothing but the database, and must not commit or roll back. */
static inline int duralite_run(sqlite3 *db, int (*work)(sqlite3 *db, void *argument), void *argument) {
  int conflicts;
  for (conflicts = 0;; conflicts++) {
    int last = conflicts == DURALITE_CONFLICTS;
    unsigned char chance;
    int code = sqlite3_exec(db, last ? "BEGIN IMMEDIATE" : "BEGIN", 0, 0, 0);
    if (code != SQLITE_OK) return code;
    code = work(db, argument);
    if (code == SQLITE_OK) code = sqlite3_exec(db, "COMMIT", 0, 0, 0);
    if (code == SQLITE_OK) return code;
    if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", 0, 0, 0);
    if (last || (code & 0xff) != SQLITE_BUSY) return code;
    sqlite3_randomness(1, &chance);
    sqlite3_sleep((chance << (conflicts + 1)) / 256); /* at most 2 ms, 4 ms, 8 ms... */
  }
}

#ifdef __cplusplus
}
#endif
#endif
