'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { setTimeout } = require('node:timers/promises');
const { promisify } = require('node:util');

const LIBRARY = path.join(__dirname, `linux-${process.arch}`, 'libduralite.so');
/** The key under which a subclass made here keeps the original class. */
const ORIGINAL = Symbol('original');
const ENABLED = new WeakMap();

function loadablePath() {
  const library = process.env.DURALITE_LIBRARY || LIBRARY;
  if (!fs.existsSync(library)) throw new Error(`duralite: there is no ${library}`);
  return library;
}

/** Runs `body` with these environment variables. The library reads them when it is loaded, and when a database is opened. */
function withEnvironment(variables, body) {
  const before = Object.keys(variables).map((name) => [name, process.env[name]]);
  Object.assign(process.env, variables);
  try {
    return body();
  } finally {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  }
}

function textOf(value) {
  return typeof value === 'boolean' ? (value ? 'on' : 'off') : String(value);
}

/** The environment variables that the library reads for settings: `{ journal: 'nvwal' }` becomes DURALITE_JOURNAL. */
function variablesOf(settings) {
  return Object.fromEntries(
    Object.entries(settings).map(([name, value]) => [`DURALITE_${name.toUpperCase()}`, textOf(value)]),
  );
}

/** Replaces variables in a message by options: the library names the variable, but the caller gave an option. */
function inOptions(message, settings) {
  const isGiven = (variable) => Object.keys(settings).some((name) => name.toUpperCase() === variable);
  return message.replace(
    /environment variable DURALITE_(\w+)(; did you mean )?(?:DURALITE_(\w+))?/g,
    (text, variable, asks, meant) => {
      if (!isGiven(variable)) return text;
      return `option ${variable.toLowerCase()}${asks ?? ''}${meant?.toLowerCase() ?? ''}`;
    },
  );
}

/** Whether a database opened with these arguments has a log: it must be a file, and writable. */
function takesALog(filename, { readonly, readOnly, memory } = {}, settings = {}) {
  const inMemory = memory || ['', ':memory:', 'undefined'].includes(String(filename));
  return !inMemory && !readonly && !readOnly && settings.journal !== 'off';
}

/** The value that a query returns on a database in memory. */
function ask(Database, query) {
  const memory = new (Database[ORIGINAL] || Database)(':memory:');
  try {
    return memory.prepare(query).get().value;
  } finally {
    memory.close();
  }
}

function lastError(Database) {
  return ask(Database, 'SELECT duralite_last_error() AS value');
}

function libraryVersion(Database) {
  return ask(Database, "SELECT value FROM duralite WHERE name='version'");
}

/** Calls `open` with these settings, then sets WAL mode and full durability. An error's text has Duralite's reason. */
function opening(Database, filename, options, settings, open) {
  const log = takesALog(filename, options, settings);
  const before = lastError(Database);
  let connection;
  try {
    connection = withEnvironment(variablesOf(log ? { strict: true, ...settings } : settings), open);
    if (!log) return;
    const { journal_mode: mode } = connection.prepare('PRAGMA journal_mode=WAL').get();
    if (mode !== 'wal') throw new Error(`the database stays in journal mode ${mode}`);
    connection.exec('PRAGMA synchronous=FULL');
  } catch (error) {
    connection?.close();
    const reason = lastError(Database);
    if (reason && reason !== before && !error.message.includes(reason)) error.message += `: ${reason}`;
    error.message = inOptions(error.message, settings);
    throw error;
  }
}

/** For better-sqlite3, whose constructor opens the database. */
function ofBetterSqlite3(Database) {
  return class extends Database {
    static [ORIGINAL] = Database;

    constructor(filename, options = {}, settings = {}) {
      opening(Database, filename, options, settings, () => super(filename, options));
    }
  };
}

/** For node:sqlite, whose constructor opens the database, or else its method `open`. */
function ofNodeSqlite(Database) {
  return class extends Database {
    static [ORIGINAL] = Database;
    #arguments;

    constructor(filename, options = {}, settings = {}) {
      if (options.open === false) super(filename, options);
      else opening(Database, filename, options, settings, () => super(filename, options));
      this.#arguments = [filename, options, settings];
    }

    open() {
      opening(Database, ...this.#arguments, () => {
        super.open();
        return this;
      });
    }
  };
}

function load(Database, options) {
  const loader = new Database(':memory:', options);
  try {
    withEnvironment({ DURALITE_MAKE_DEFAULT: '1' }, () => loader.loadExtension(loadablePath()));
  } finally {
    loader.close();
  }
}

/** For sqlite3, whose connections open on another thread. So the settings go into the URI, not into the environment. */
async function ofSqlite3(sqlite3) {
  const call = (run) =>
    new Promise((resolve, reject) => run((error, value) => (error ? reject(error) : resolve(value))));
  let loader;
  await call((done) => (loader = new sqlite3.Database(':memory:', done)));
  await call((done) => loader.loadExtension(loadablePath(), done));
  await call((done) => loader.close(done));
  const uriOf = (filename, settings) => {
    const location = path.resolve(filename).split('/').map(encodeURIComponent).join('/');
    return `file://${location}?${new URLSearchParams(
      Object.entries({ vfs: 'duralite', ...settings }).map(([name, value]) => [name, textOf(value)]),
    )}`;
  };
  const explain = (error, told) => {
    const memory = new sqlite3.Database(':memory:');
    memory.get('SELECT duralite_last_error() AS reason', (_, row) => {
      if (row?.reason) error.message += `: ${row.reason}`;
      memory.close();
      told(error);
    });
  };
  return class extends sqlite3.Database {
    constructor(filename, mode = sqlite3.OPEN_READWRITE | sqlite3.OPEN_CREATE, settings = {}, callback = undefined) {
      const log = takesALog(filename, { readonly: (mode & sqlite3.OPEN_READONLY) !== 0 }, settings);
      if (!log) {
        super(filename, mode, callback);
        return;
      }
      const told = (error) => {
        if (callback) callback.call(this, error);
        else if (error) this.emit('error', error);
      };
      super(uriOf(filename, { strict: true, ...settings }), mode | sqlite3.OPEN_URI, (error) => {
        if (error) explain(error, told);
      });
      // Queued before anything that the caller does.
      this.serialize(() => {
        this.exec('PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL', (error) => {
          if (error) explain(error, told);
          else told(null);
        });
      });
    }
  };
}

/** How often a transaction may lose to others. After that it begins with the write lock. */
const CONFLICTS = 5;
/** The longest pause before the second attempt, in milliseconds. Each later pause may be twice as long as the one before. */
const PAUSE = 2;

/** The attempts at one transaction: the statement that begins it, and the pause before it. The last attempt cannot lose. */
const ATTEMPTS = Array.from({ length: CONFLICTS + 1 }, (_, number) => ({
  begin: number === CONFLICTS ? 'BEGIN IMMEDIATE' : 'BEGIN',
  pause: () => (number === 0 ? 0 : Math.random() * PAUSE * 2 ** (number - 1)),
  mayRunAgain: (error) => number < CONFLICTS && isBusy(error),
}));

/** SQLITE_BUSY and its extended codes: `code` of better-sqlite3 and sqlite3, `errcode` of node:sqlite. */
function isBusy(error) {
  return /^SQLITE_BUSY(_|$)/.test(error?.code) || (error?.errcode & 0xff) === 5;
}

function run(database, work) {
  return 'parallelize' in database ? runLater(database, work) : runNow(database, work);
}

/** For better-sqlite3 and node:sqlite, which block their thread while they wait. */
function runNow(database, work) {
  for (const { begin, pause, mayRunAgain } of ATTEMPTS) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, pause());
    database.exec(begin);
    try {
      const result = work(database);
      if (typeof result?.then === 'function') throw new TypeError('work returns a promise, and would outlive its transaction');
      database.exec('COMMIT');
      return result;
    } catch (error) {
      rollBack(database);
      if (!mayRunAgain(error)) throw error;
    }
  }
}

/** If COMMIT fails with BUSY_SNAPSHOT, SQLite itself has rolled back, and ROLLBACK finds no transaction. */
function rollBack(database) {
  try {
    database.exec('ROLLBACK');
  } catch {}
}

/** For sqlite3, which works on another thread. */
async function runLater(database, work) {
  const exec = promisify(database.exec.bind(database));
  for (const { begin, pause, mayRunAgain } of ATTEMPTS) {
    await setTimeout(pause());
    await exec(begin);
    try {
      const result = await work(database);
      await exec('COMMIT');
      return result;
    } catch (error) {
      await exec('ROLLBACK').catch(() => {}); // as above
      if (!mayRunAgain(error)) throw error;
    }
  }
}

function enable(Database) {
  if (!ENABLED.has(Database)) ENABLED.set(Database, enableAnew(Database));
  return ENABLED.get(Database);
}

function enableAnew(Database) {
  if (typeof Database !== 'function' && typeof Database?.Database === 'function') return ofSqlite3(Database);
  if (Database?.name === 'DatabaseSync') {
    load(Database, { allowExtension: true });
    return ofNodeSqlite(Database);
  }
  if (typeof Database !== 'function') throw new TypeError('enable takes the class of better-sqlite3 or node:sqlite, or the module sqlite3');
  load(Database, {});
  return ofBetterSqlite3(Database);
}

module.exports = { enable, lastError, libraryVersion, loadablePath, run };
