/* An automatic extension of SQLite: puts every database file that is opened into WAL mode with
 * synchronous=FULL, before the program that opens it can say anything, and writes down which VFS
 * was in the way. Stock SQLite and Duralite are given the same one.
 *
 * COMPAT_JOURNAL   wal: force; anything else: leave the journal mode to the program
 * COMPAT_EVIDENCE  a file that gets one line per open: active, concurrent (active, and with that setting), idle or
 *                  none (no Duralite)
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

/* Nobody has set a busy handler at this point, and a fresh database has to be converted alone. */
#define BUSY_MS 1000

static int wal_is_forced(void) {
    const char *journal = getenv("COMPAT_JOURNAL");
    return journal && strcmp(journal, "wal") == 0;
}

static int keep_first(void *state, int columns, char **values, char **names) {
    (void)names;
    if (columns > 0 && values[0]) {
        strncpy(state, values[0], 511);
    }
    return 0;
}

static void note(sqlite3 *db) {
    static pid_t seen; /* a child counts as new */
    const char *path = getenv("COMPAT_EVIDENCE");
    char text[512] = "", concurrent[512] = "";
    const char *word = "none\n";
    int file;
    if (!path) {
        return;
    }
    if (wal_is_forced() && seen != getpid()) {
        /* A database that was made just now has no log yet: read, so that it gets one. */
        seen = getpid();
        sqlite3_exec(db, "PRAGMA schema_version", NULL, NULL, NULL);
    }
    sqlite3_exec(db, "PRAGMA duralite", keep_first, text, NULL);
    if (text[0]) {
        word = strstr(text, "state\tactive") ? "active\n" : "idle\n";
        sqlite3_exec(db, "PRAGMA duralite_concurrent", keep_first, concurrent, NULL);
        if (word[0] == 'a' && strcmp(concurrent, "on") == 0) {
            word = "concurrent\n";
        }
    }
    file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        /* One short write per line: lines of several processes do not mix. */
        ssize_t written = write(file, word, strlen(word));
        (void)written;
        close(file);
    }
}

static void force(sqlite3 *db) {
    if (wal_is_forced()) {
        sqlite3_busy_timeout(db, BUSY_MS);
        sqlite3_exec(db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL);
        sqlite3_exec(db, "PRAGMA synchronous=FULL", NULL, NULL, NULL);
        sqlite3_busy_timeout(db, 0);
    }
    note(db);
    /* An error left behind here would fail the program's open. */
    sqlite3_exec(db, "", NULL, NULL, NULL);
}

/* VACUUM INTO attaches as well, and wants no file there. */
static int vacuum_is_running(sqlite3 *db) {
    sqlite3_stmt *statement = sqlite3_next_stmt(db, NULL);
    for (; statement; statement = sqlite3_next_stmt(db, statement)) {
        const char *sql = sqlite3_sql(statement);
        if (sql && sqlite3_stmt_busy(statement) && sqlite3_strnicmp(sql + strspn(sql, " \t\r\n"), "vacuum", 6) == 0) {
            return 1;
        }
    }
    return 0;
}

/* A database that ATTACH is about to make is opened once by itself before: it then is in WAL mode. */
static int attaching(void *db, int action, const char *name, const char *second, const char *third,
                     const char *trigger) {
    struct stat status;
    sqlite3 *other = NULL;
    (void)second, (void)third, (void)trigger;
    if (action != SQLITE_ATTACH || !name || !*name || name[0] == ':' || strncmp(name, "file:", 5) == 0) {
        return SQLITE_OK;
    }
    if ((stat(name, &status) == 0 && status.st_size > 0) || vacuum_is_running(db)) {
        return SQLITE_OK;
    }
    sqlite3_open_v2(name, &other, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    sqlite3_close(other);
    return SQLITE_OK;
}

int compat_force(sqlite3 *db, char **message, const sqlite3_api_routines *routines) {
    const char *path;
    SQLITE_EXTENSION_INIT2(routines);
    (void)message;
    path = sqlite3_db_filename(db, "main");
    if (path && *path) {
        force(db);
    }
    if (wal_is_forced()) {
        sqlite3_set_authorizer(db, attaching, db);
    }
    return SQLITE_OK;
}
