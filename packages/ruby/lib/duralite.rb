# frozen_string_literal: true

require "fiddle"
require "sqlite3"

# Opens SQLite databases through Duralite, with the sqlite3 gem. Every commit is durable, and fast. For Linux on x86-64.
#
#   db = Duralite.open("app.db") # an ordinary SQLite3::Database
module Duralite
  # How long a connection waits for another's lock, in milliseconds, unless the caller sets another timeout.
  BUSY_TIMEOUT = 5000

  # How often a transaction may lose to others. After that it begins with the write lock.
  CONFLICTS = 5

  # The longest pause before the second attempt, in seconds. Each later pause may be twice as long as the one before.
  PAUSE = 0.002
  private_constant :CONFLICTS, :PAUSE

  # The library's functions for the number of the last refusal, and for its reason.
  Library = Struct.new(:refusal, :reason)
  private_constant :Library

  class << self
    # Opens a database in WAL mode with synchronous=FULL, so that committed transactions survive a power loss. With
    # strict=on, it is an error if plain SQLite would have to serve the database. Databases in memory, databases opened with
    # readonly: true, and those with journal: "off" are opened without these settings.
    #
    # Settings are those of Duralite, or SQLite's own URI parameters. All other arguments are those of SQLite3::Database.new,
    # except the flags. A setting such as journal: "nvwal" goes into the hash: Duralite.open("app.db", { journal: "nvwal" }).
    #
    # Raises what SQLite3::Database.new raises, and SQLite3::Exception if the database cannot be put into WAL mode. If
    # Duralite refused something, the message has the reason. With a block, yields the connection, and closes it after the
    # block.
    def open(path, settings = {}, **options)
      enable
      database = telling { open_with(path, settings, options) }
      return database unless block_given?

      begin
        yield database
      ensure
        database.close
      end
    end

    # Runs the block as a transaction, commits it, and returns what the block returns.
    #
    #   Duralite.run(db) { db.execute("UPDATE t SET x = x + 1") }
    #
    # If the transaction loses to another connection (SQLITE_BUSY, SQLITE_BUSY_SNAPSHOT), it is rolled back, and the block
    # runs again after a short random pause. After five conflicts the transaction begins with BEGIN IMMEDIATE and can no
    # longer lose. On any other exception it is rolled back, and the exception is raised. If COMMIT raised it, the
    # transaction may be committed or not. The block should change nothing but the database, and must not commit or roll
    # back.
    def run(database, &block)
      CONFLICTS.times do |conflicts|
        return attempt(database, :deferred, &block)
      rescue SQLite3::BusyException
        sleep(rand * PAUSE * 2**conflicts)
      end
      attempt(database, :immediate, &block)
    end

    # Registers the VFS "duralite" with the SQLite of this process, through the given connection if there is one. That
    # connection keeps its VFS; connections opened later by a URI with vfs=duralite go through Duralite. Further calls do no
    # harm.
    def enable(database = nil)
      return if @library

      loader = database || SQLite3::Database.new(":memory:")
      loader.enable_load_extension(true)
      loader.load_extension(loadable_path)
      loader.enable_load_extension(false)
      loader.close unless database
      @library = functions
      nil
    end

    # The reason of Duralite's last refusal in this thread, or else in this process; nil if there was none.
    def last_error
      enable
      text = @library.reason.call
      text.null? ? nil : text.to_s.force_encoding(Encoding::UTF_8)
    end

    # The path of libduralite.so: the one that DURALITE_LIBRARY names, or else the one in this gem.
    def loadable_path
      ENV["DURALITE_LIBRARY"] || File.expand_path("duralite/libduralite.so", __dir__)
    end

    private

    def attempt(database, mode)
      database.transaction(mode)
      done = false
      begin
        result = yield database
        database.commit
        done = true
        result
      ensure
        database.rollback if !done && database.transaction_active?
      end
    end

    def functions
      handle = Fiddle.dlopen(loadable_path)
      Library.new(
        Fiddle::Function.new(handle["duralite_last_refusal"], [], Fiddle::TYPE_LONG_LONG),
        Fiddle::Function.new(handle["duralite_last_error"], [], Fiddle::TYPE_VOIDP)
      )
    end

    def telling
      before = @library.refusal.call
      yield
    rescue SQLite3::Exception => e
      raise unless @library.refusal.call > before

      raise e, "#{e.message}: #{last_error}"
    end

    def open_with(path, settings, options)
      flags = flags_of(options)
      takes_a_log = path.to_s != ":memory:" && !options[:readonly] && settings[:journal].to_s != "off"
      settings = { strict: "on" }.merge(settings) if takes_a_log
      options = options.reject { |name, _| %i[readonly readwrite].include?(name) }
      database = SQLite3::Database.new(uri(path.to_s, settings), options.merge(flags: flags))
      database.busy_timeout(BUSY_TIMEOUT)
      set_wal(database) if takes_a_log
      database
    end

    def flags_of(options)
      mode = SQLite3::Constants::Open
      return mode::URI | mode::READONLY if options[:readonly]

      mode::URI | mode::READWRITE | (options[:readwrite] ? 0 : mode::CREATE)
    end

    def set_wal(database)
      mode = database.get_first_value("PRAGMA journal_mode=WAL")
      raise SQLite3::Exception, "the database stays in journal mode #{mode}" unless mode == "wal"

      database.execute("PRAGMA synchronous=FULL")
    rescue SQLite3::Exception
      database.close
      raise
    end

    def uri(path, settings)
      location = path == ":memory:" ? path : "//#{escape(File.absolute_path(path))}"
      pairs = { vfs: "duralite" }.merge(settings).map { |name, value| "#{escape(name.to_s)}=#{escape(text(value))}" }
      "file:#{location}?#{pairs.join('&')}"
    end

    def text(value)
      { true => "on", false => "off" }.fetch(value, value).to_s
    end

    def escape(text)
      text.b.gsub(%r{[^a-zA-Z0-9/._~\-\x00]}n) { |byte| format("%%%02X", byte.ord) }.force_encoding(Encoding::UTF_8)
    end
  end
end
