/* memory URI: what applications do with a database, run under a checker of memory accesses. Loads the library that
   DURALITE_LIBRARY names, if that is set, and prints "ok". */
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *uri;

static sqlite3 *open_database(void) {
    sqlite3 *db;
    if (sqlite3_open_v2(uri, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, 0)) {
        fprintf(stderr, "%s\n", sqlite3_errmsg(db));
        exit(2);
    }
    sqlite3_busy_timeout(db, 60000);
    return db;
}

static void run(sqlite3 *db, const char *sql) {
    char *error = 0;
    if (sqlite3_exec(db, sql, 0, 0, &error)) {
        fprintf(stderr, "%s: %s\n", sql, error);
        exit(2);
    }
}

static void *writer(void *number) {
    sqlite3 *db = open_database();
    for (int i = 0; i < 15; i++) {
        char sql[200];
        snprintf(sql, sizeof sql, "INSERT INTO t VALUES ('%c.%d', randomblob(%d))", *(char *)number, i, 100 + i * 700);
        run(db, sql);
        if (i % 5 == 0) run(db, "SELECT count(*) FROM t; PRAGMA duralite");
    }
    sqlite3_close(db);
    return 0;
}

int main(int count, char **arguments) {
    sqlite3 *loader, *db;
    char *error = 0;
    const char *library = getenv("DURALITE_LIBRARY");
    if (count != 2) return 2;
    uri = arguments[1];
    sqlite3_open(":memory:", &loader);
    sqlite3_enable_load_extension(loader, 1);
    if (library && sqlite3_load_extension(loader, library, 0, &error)) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    db = open_database();
    run(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t(name, data)");
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, writer, "abc" + i);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    /* A transaction that is rolled back, one that outgrows the cache, and deletions. */
    run(db, "BEGIN; DELETE FROM t; ROLLBACK");
    run(db, "PRAGMA cache_size=5; BEGIN; INSERT INTO t SELECT name || 'x', randomblob(3000) FROM t;"
            "SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; COMMIT");
    run(db, "DELETE FROM t WHERE rowid % 3 = 0; PRAGMA wal_checkpoint(RESTART); UPDATE t SET name = name || 'y'");
    /* A child that opens the database itself. */
    if (fork() == 0) {
        writer("d");
        _exit(0);
    }
    int status;
    if (wait(&status) < 0 || status) return 3;
    run(db, "PRAGMA integrity_check; VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
    run(db, "PRAGMA journal_mode=DELETE; INSERT INTO t VALUES ('z', 1); PRAGMA journal_mode=WAL; INSERT INTO t VALUES ('z', 2)");
    sqlite3_close(db);
    sqlite3_close(loader);
    puts("ok");
    return 0;
}
