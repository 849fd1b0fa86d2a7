//! Tests of the SQL function that returns the reason of a refusal.

use super::shell::{Host, library};

const WHY: &str = "select coalesce(duralite_last_error(), 'nothing yet');";

#[test]
fn the_loading_connection_and_later_ones_tell_the_last_refusal() {
    let Some(host) = Host::new() else { return };
    let said = host.run(&[WHY, ".open other.db", WHY]);
    assert_eq!(said.out, "nothing yet\nnothing yet", "{}", said.err);
    let script = format!(
        ".load {}\n.open file:x.db?vfs=duralite&journal=nvwal\n.open :memory:\n{WHY}\n",
        library().display()
    );
    let said = host.script(&script);
    assert!(said.out.starts_with("journal=nvwal needs NVRAM: set nvram=DIR"), "{} {}", said.out, said.err);
}

#[test]
fn a_refusal_of_a_statement_is_told_too() {
    let Some(host) = Host::new() else { return };
    let fill = "pragma journal_mode=wal; create table t(a); insert into t values(1);";
    host.open(&host.uri("o.db"), &[fill, ".shell kill -9 $PPID"]);
    std::fs::copy(host.path("o.db"), host.path("copy.db")).unwrap();
    let script = format!(
        ".load {}\n.open {}\nselect * from t;\n.open :memory:\n{WHY}\n",
        library().display(),
        host.uri("copy.db")
    );
    let said = host.script(&script);
    assert!(said.out.contains("copy.db") || said.out.contains("belongs to another file"), "{}", said.out);
}

#[test]
fn loading_again_while_the_function_runs_is_harmless() {
    let Some(host) = Host::new() else { return };
    let again =
        format!("select load_extension('{}'), coalesce(duralite_last_error(), 'none');", library().display());
    let said = host.run(&[&again, &again]);
    assert_eq!(said.out, "|none\n|none", "{}", said.err);
}

/// A program, and a package that it uses, may each bring a copy of the library.
#[test]
fn a_second_copy_of_the_library_leaves_the_first_in_place() {
    let Some(host) = Host::new() else { return };
    let copy = host.path("libcopy.so");
    std::fs::copy(library(), &copy).unwrap();
    let script = format!(
        ".load {}\n.load {} sqlite3_duralite_init\n.open file:x.db?vfs=duralite&jornal=off\n.open :memory:\n{WHY}\n",
        library().display(),
        copy.display()
    );
    let said = host.script(&script);
    assert_eq!(said.out, "unknown URI parameter jornal; did you mean journal?", "{}", said.err);
}
