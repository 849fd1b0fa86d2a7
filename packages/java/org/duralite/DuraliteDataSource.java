package org.duralite;

import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.SQLFeatureNotSupportedException;
import java.sql.Statement;
import java.util.Map;
import java.util.logging.Logger;
import javax.sql.DataSource;
import org.sqlite.SQLiteConfig;

/**
 * Connections of sqlite-jdbc through the VFS of Duralite, with WAL mode, synchronous=FULL and strict=on. So a commit is
 * durable when it returns. If plain SQLite would have to serve a database, an SQLException says why.
 */
public final class DuraliteDataSource implements DataSource {
    private static final String SCHEME = "jdbc:sqlite:";
    private static boolean loaded;
    private final String url;

    /** Takes "jdbc:sqlite:PATH" with the path of a file, without parameters. Opens nothing yet. */
    public DuraliteDataSource(String url) {
        this(url, Map.of());
    }

    /** As the other constructor, with Duralite's settings for each connection, as in {@code Map.of("concurrent", "on")}. */
    public DuraliteDataSource(String url, Map<String, String> settings) {
        if (!url.startsWith(SCHEME) || url.length() == SCHEME.length()) {
            throw new IllegalArgumentException("not " + SCHEME + "PATH: " + url);
        }
        String path = url.substring(SCHEME.length());
        if (path.startsWith("file:") || path.startsWith(":") || path.contains("?")) {
            throw new IllegalArgumentException("the path of a file is needed, not " + path);
        }
        String escaped = path.replace("%", "%25").replace("#", "%23");
        var uri = new StringBuilder(SCHEME).append("file:").append(escaped).append("?vfs=duralite");
        if (!settings.containsKey("strict")) uri.append("&strict=on");
        settings.forEach((name, value) -> uri.append('&').append(encode(name)).append('=').append(encode(value)));
        this.url = uri.toString();
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    /** Opens a connection. If Duralite does not serve it, the exception has the reason. */
    @Override
    public Connection getConnection() throws SQLException {
        load();
        Connection connection = null;
        try {
            connection = DriverManager.getConnection(url);
            try (Statement statement = connection.createStatement()) {
                statement.execute("PRAGMA journal_mode=WAL");
                statement.execute("PRAGMA synchronous=FULL");
            }
            return connection;
        } catch (SQLException failure) {
            if (connection != null) connection.close();
            String reason = lastError();
            String message = failure.getMessage() + (reason == null ? "" : ": " + reason);
            throw new SQLException(message, failure.getSQLState(), failure.getErrorCode(), failure);
        }
    }

    /** The reason of the last refusal in this thread, or else in the process; null if there was none. */
    public static String lastError() throws SQLException {
        load();
        try (Connection memory = DriverManager.getConnection(SCHEME + ":memory:");
                Statement statement = memory.createStatement();
                var row = statement.executeQuery("SELECT duralite_last_error()")) {
            return row.getString(1);
        }
    }

    /** Loads the library once, from a new directory that only this user may enter. The directory is removed again. */
    private static synchronized void load() throws SQLException {
        if (loaded) return;
        String name = "/duralite/linux-" + System.getProperty("os.arch") + "/libduralite.so";
        try (InputStream resource = DuraliteDataSource.class.getResourceAsStream(name)) {
            if (resource == null) throw new SQLException("this jar has no " + name);
            Path directory = Files.createTempDirectory("duralite"); // mode 0700, with an unpredictable name
            Path file = directory.resolve("libduralite.so");
            try {
                Files.copy(resource, file);
                loadFrom(file);
                loaded = true; // even if the file cannot be removed
            } finally {
                Files.deleteIfExists(file); // the loaded library stays mapped
                Files.delete(directory);
            }
        } catch (IOException failure) {
            throw new SQLException("cannot unpack libduralite.so: " + failure.getMessage(), failure);
        }
    }

    private static void loadFrom(Path file) throws SQLException {
        SQLiteConfig config = new SQLiteConfig();
        config.enableLoadExtension(true);
        try (Connection memory = DriverManager.getConnection(SCHEME + ":memory:", config.toProperties());
                PreparedStatement statement = memory.prepareStatement("SELECT load_extension(?)")) {
            statement.setString(1, file.toString());
            statement.execute();
        }
    }

    @Override
    public Connection getConnection(String user, String password) throws SQLException {
        return getConnection();
    }

    @Override
    public PrintWriter getLogWriter() {
        return null;
    }

    @Override
    public void setLogWriter(PrintWriter writer) throws SQLException {
        throw new SQLFeatureNotSupportedException("set DURALITE_LOG=stderr instead");
    }

    @Override
    public void setLoginTimeout(int seconds) throws SQLException {
        throw new SQLFeatureNotSupportedException("use PRAGMA busy_timeout");
    }

    @Override
    public int getLoginTimeout() {
        return 0;
    }

    @Override
    public Logger getParentLogger() throws SQLFeatureNotSupportedException {
        throw new SQLFeatureNotSupportedException();
    }

    @Override
    public <T> T unwrap(Class<T> type) throws SQLException {
        if (type.isInstance(this)) return type.cast(this);
        throw new SQLException("not a " + type.getName());
    }

    @Override
    public boolean isWrapperFor(Class<?> type) {
        return type.isInstance(this);
    }
}
