/*
** duralite.h - C interface of libduralite, a VFS for stock SQLite with fast durable commits.
**
** Call duralite_enable() once per process, before the first database is opened. Then open
** databases with "file:NAME?vfs=duralite&strict=on" and SQLITE_OPEN_URI, and set WAL mode by
** PRAGMA journal_mode=WAL. With strict=on, what would end as plain SQLite is an error.
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

/* The reason of the calling thread's last refusal, else of the process's last; NULL for none.
** The text stays until the thread's next refusal or next call. */
const char *duralite_last_error(void);

/* The number of the calling thread's last refusal, counted through the process; 0 for none. */
uint64_t duralite_last_refusal(void);

/* Makes the VFS "duralite" known to this process. Calling it again is harmless. Returns
** SQLITE_OK, or the code with which SQLite refused; duralite_last_error() may say why. */
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

#ifdef __cplusplus
}
#endif
#endif
