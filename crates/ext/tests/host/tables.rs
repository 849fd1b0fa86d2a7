//! Tests, in the `sqlite3` shell, of the tables and the JSON functions that the library adds to SQLite.

use super::shell::{Host, library};

const STATE: &str = "select value from duralite where name = 'state';";

/// The connection that loads the library already has a database open. Plain SQLite continues to serve that
/// database, and the tables say so. Duralite serves the database that is opened next.
#[test]
fn the_connection_that_loads_and_later_ones_have_the_tables() {
    let Some(host) = Host::new() else { return };
    let script = format!(
        "create table t(a);\n.load {}\n{STATE}\nselect count(*) from duralite_log;\n.open {}\npragma journal_mode=wal;\n\
         create table t(a);\n{STATE}\nselect number, frames, pages from duralite_log;\n\
         select duralite_json() like '{{\"version\":\"%\",\"engine\":\"nvwal\",\"state\":\"active\",%}}';\n",
        library().display(),
        host.uri("o.db")
    );
    let script = format!(".open plain.db\n{script}");
    let said = host.script(&script);
    let plain = "off: opened through the VFS unix, not through Duralite\n0";
    assert_eq!(said.out, format!("{plain}\nwal\nactive\n1|2|[1,2]\n1"), "{}", said.err);
}

#[test]
fn loading_again_while_a_table_is_read_is_harmless() {
    let Some(host) = Host::new() else { return };
    let again = format!(
        "select name, load_extension('{}'), (select count(*) from duralite) from duralite;",
        library().display()
    );
    let said = host.run(&[&again, STATE]);
    assert_eq!(said.out, "version||3\nengine||3\nstate||3\noff: it has no file", "{}", said.err);
}

/// The second copy of the library finds the VFS of the first, and leaves the functions and tables to the
/// first.
#[test]
fn the_tables_of_a_second_copy_of_the_library_are_those_of_the_first() {
    let Some(host) = Host::new() else { return };
    let copy = host.path("libcopy.so");
    std::fs::copy(library(), &copy).unwrap();
    let script = format!(
        ".load {}\n.load {} sqlite3_duralite_init\n.open {}\npragma journal_mode=wal;\ncreate table t(a);\n{STATE}\n",
        library().display(),
        copy.display(),
        host.uri("c.db")
    );
    let said = host.script(&script);
    assert_eq!(said.out, "wal\nactive", "{}", said.err);
}
