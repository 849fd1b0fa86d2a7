/** Duralite's settings by name, as in docs/settings.md; `true` and `false` become `on` and `off`. */
export type Settings = Record<string, string | number | boolean>;

type Opens = new (...args: any[]) => any;

/**
 * Loads Duralite into the SQLite of better-sqlite3's class or of `DatabaseSync`, and makes it the default there. Returns a
 * subclass with one argument more, the settings of the connection: what it opens is in WAL mode with `synchronous=FULL`, and
 * what would end as plain SQLite throws, with Duralite's reason in the message. Call it before any database is opened.
 * @throws where the library is missing, or this SQLite loads no extensions
 */
export function enable<Database extends Opens>(
  database: Database,
): Omit<Database, "prototype"> & {
  new (filename: string, options?: ConstructorParameters<Database>[1], settings?: Settings): InstanceType<Database>;
};

/** The same for the module `sqlite3`, whose class opens on another thread. */
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

/** Why Duralite refused last in this process, asked through a synchronous class; `null` if it never did. */
export function lastError(database: Opens): string | null;

/** The library's version, with the build id in brackets if it has one: `0.1.0 (9f86d08)`; asked through a synchronous class. */
export function libraryVersion(database: Opens): string;

/** The path of libduralite.so. DURALITE_LIBRARY in the environment names another one. */
export function loadablePath(): string;

/**
 * Runs `work` as a transaction of a connection, commits it, and returns what `work` returns.
 *
 * If the transaction loses to another connection (`SQLITE_BUSY`, `SQLITE_BUSY_SNAPSHOT`), it is rolled back and `work` runs
 * again after a short random pause. After five conflicts it begins with `BEGIN IMMEDIATE` and cannot lose any more. Every
 * other error rolls back and is thrown, also one of `COMMIT` that leaves open whether the transaction is committed.
 *
 * `work` may run several times, so it should change nothing but the database; it neither commits nor rolls back. With the
 * module `sqlite3` it may be asynchronous, `run` returns a promise, and nothing else may use the connection meanwhile.
 */
export function run<Connection extends { parallelize: Function }, Result>(
  database: Connection,
  work: (database: Connection) => Result,
): Promise<Awaited<Result>>;
export function run<Connection extends { exec(sql: string): unknown }, Result>(
  database: Connection,
  work: (database: Connection) => Result,
): Result;
