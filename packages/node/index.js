'use strict';

const fs = require('node:fs');
const path = require('node:path');

const LIBRARY = path.join(__dirname, `linux-${process.arch}`, 'libduralite.so');
/** Where a class of ours keeps the one it is made of. */
const ORIGINAL = Symbol('original');
const ENABLED = new WeakMap();

function loadablePath() {
  const library = process.env.DURALITE_LIBRARY || LIBRARY;
  if (!fs.existsSync(library)) throw new Error(`duralite: there is no ${library}`);
  return library;
}

/** Runs `body` with these environment variables: the library reads them when it is loaded, and when a database is opened. */
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

/** Settings as the library's variables: `{ journal: 'nvwal' }` as DURALITE_JOURNAL. */
function variablesOf(settings) {
  return Object.fromEntries(
    Object.entries(settings).map(([name, value]) => [`DURALITE_${name.toUpperCase()}`, textOf(value)]),
  );
}

/** The library knows options as variables; who gave an option looks for that. */
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

/** Whether a database that is opened so has a log: it is a file, and may be written. */
function takesALog(filename, { readonly, readOnly, memory } = {}, settings = {}) {
  const inMemory = memory || ['', ':memory:', 'undefined'].includes(String(filename));
  return !inMemory && !readonly && !readOnly && settings.journal !== 'off';
}

/** The one value that a query of a database in memory answers. */
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

/** Opens by `open` with these settings; then sets WAL mode and full durability. Errors have Duralite's reason in their text. */
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

/** better-sqlite3: the constructor opens. */
function ofBetterSqlite3(Database) {
  return class extends Database {
    static [ORIGINAL] = Database;

    constructor(filename, options = {}, settings = {}) {
      opening(Database, filename, options, settings, () => super(filename, options));
    }
  };
}

/** node:sqlite: the constructor opens, or `open` does. */
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

/** sqlite3, whose connections open on another thread: settings go into the URI. */
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
      // Queued before whatever the caller does.
      this.serialize(() => {
        this.exec('PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL', (error) => {
          if (error) explain(error, told);
          else told(null);
        });
      });
    }
  };
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

module.exports = { enable, lastError, libraryVersion, loadablePath };
