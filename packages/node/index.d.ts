/** Duralite's settings by name, as in docs/settings.md; `true` and `false` become `on` and `off`. */
export type Settings = Record<string, string | number | boolean>;

type Opens = new (...args: any[]) => any;

/**
 * Loads Duralite into the SQLite of better-sqlite3's class or of `DatabaseSync`, and makes it that SQLite's default VFS. Returns
 * a subclass whose constructor takes one more argument, the settings of the connection. The subclass opens databases in WAL mode
 * with `synchronous=FULL`. If plain SQLite would have to serve a database, it throws, with Duralite's reason in the message.
 * Call `enable` before any database is opened.
 * @throws if the library is missing, or if this SQLite loads no extensions
 */
export function enable<Database extends Opens>(
  database: Database,
): Omit<Database, "prototype"> & {
  new (filename: string, options?: ConstructorParameters<Database>[1], settings?: Settings): InstanceType<Database>;
};

/** As above, for the module `sqlite3`, whose class opens databases on another thread. */
export function enable<Module extends { Database: Opens }>(
  sqlite3: Module,
): Promise<
  new (
    filename: string,
    mode?: number,
    settings?: Settings,
    callback?: (error: Error | null) => void,
  ) => InstanceType<Module["Database"]>
>;

/** The reason of Duralite's last refusal in this process; `null` if there was none. Needs a class that works synchronously. */
export function lastError(database: Opens): string | null;

/** The library's version, and the build id in brackets if it has one: `0.1.0 (9f86d08)`. Needs a class that works synchronously. */
export function libraryVersion(database: Opens): string;

/** The path of libduralite.so: the one that DURALITE_LIBRARY names in the environment, or else the one in this package. */
export function loadablePath(): string;

/**
 * Runs `work` as a transaction of a connection, commits it, and returns what `work` returns.
 *
 * If the transaction loses to another connection (`SQLITE_BUSY`, `SQLITE_BUSY_SNAPSHOT`), it is rolled back, and `work` runs
 * again after a short random pause. After five conflicts the transaction begins with `BEGIN IMMEDIATE` and can no longer lose.
 * On any other error it is rolled back, and the error is thrown. If `COMMIT` threw that error, the transaction may be committed
 * or not.
 *
 * `work` may run several times, so it should change nothing but the database, and must not commit or roll back. With the module
 * `sqlite3`, `work` may be asynchronous and `run` returns a promise. Until that promise settles, nothing else may use the
 * connection.
 */
export function run<Connection extends { parallelize: Function }, Result>(
  database: Connection,
  work: (database: Connection) => Result,
): Promise<Awaited<Result>>;
export function run<Connection extends { exec(sql: string): unknown }, Result>(
  database: Connection,
  work: (database: Connection) => Result,
): Result;
