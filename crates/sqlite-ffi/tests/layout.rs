//! Compares the declarations with SQLite's header on this machine, as the machine's C compiler reads it.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use duralite_sqlite_ffi::{
    ALL, ApiRoutines, File, IndexConstraint, IndexConstraintUsage, IndexInfo, IoMethods, Module, VTab,
    VTabCursor, Vfs,
};

macro_rules! offsets {
    ($out:ident, $rust:ty, $c:literal, $($field:ident = $c_field:literal),* $(,)?) => {
        $($out.push((format!("offsetof({}, {})", $c, $c_field), offset_of!($rust, $field) as i64));)*
    };
}

fn of_io_methods(all: &mut Vec<(String, i64)>) {
    offsets!(
        all,
        IoMethods,
        "sqlite3_io_methods",
        version = "iVersion",
        close = "xClose",
        read = "xRead",
        write = "xWrite",
        truncate = "xTruncate",
        sync = "xSync",
        file_size = "xFileSize",
        lock = "xLock",
        unlock = "xUnlock",
        check_reserved_lock = "xCheckReservedLock",
        file_control = "xFileControl",
        sector_size = "xSectorSize",
        device_characteristics = "xDeviceCharacteristics",
        shm_map = "xShmMap",
        shm_lock = "xShmLock",
        shm_barrier = "xShmBarrier",
        shm_unmap = "xShmUnmap",
        fetch = "xFetch",
        unfetch = "xUnfetch",
    );
}

fn of_vfs(all: &mut Vec<(String, i64)>) {
    offsets!(
        all,
        Vfs,
        "sqlite3_vfs",
        version = "iVersion",
        os_file_bytes = "szOsFile",
        max_pathname = "mxPathname",
        next = "pNext",
        name = "zName",
        app_data = "pAppData",
        open = "xOpen",
        delete = "xDelete",
        access = "xAccess",
        full_pathname = "xFullPathname",
        dl_open = "xDlOpen",
        dl_error = "xDlError",
        dl_sym = "xDlSym",
        dl_close = "xDlClose",
        randomness = "xRandomness",
        sleep = "xSleep",
        current_time = "xCurrentTime",
        get_last_error = "xGetLastError",
        current_time_int64 = "xCurrentTimeInt64",
        set_system_call = "xSetSystemCall",
        get_system_call = "xGetSystemCall",
        next_system_call = "xNextSystemCall",
    );
}

fn of_api_routines(all: &mut Vec<(String, i64)>) {
    offsets!(
        all,
        ApiRoutines,
        "sqlite3_api_routines",
        busy_handler = "busy_handler",
        close = "close",
        column_int = "column_int",
        column_text = "column_text",
        errmsg = "errmsg",
        finalize = "finalize",
        free = "free",
        libversion_number = "libversion_number",
        mprintf = "mprintf",
        result_text = "result_text",
        step = "step",
        prepare_v2 = "prepare_v2",
        file_control = "file_control",
        open_v2 = "open_v2",
        vfs_find = "vfs_find",
        vfs_register = "vfs_register",
        create_function_v2 = "create_function_v2",
        log = "log",
        threadsafe = "xthreadsafe",
        db_filename = "db_filename",
        uri_parameter = "uri_parameter",
        auto_extension = "auto_extension",
        uri_key = "uri_key",
        filename_journal = "filename_journal",
        filename_wal = "filename_wal",
        declare_vtab = "declare_vtab",
        result_error = "result_error",
        result_int64 = "result_int64",
        value_text = "value_text",
        create_module_v2 = "create_module_v2",
        context_db_handle = "context_db_handle",
        vtab_config = "vtab_config",
    );
}

fn of_tables(all: &mut Vec<(String, i64)>) {
    offsets!(all, VTab, "sqlite3_vtab", module = "pModule", references = "nRef", message = "zErrMsg");
    offsets!(all, VTabCursor, "sqlite3_vtab_cursor", table = "pVtab");
    offsets!(
        all,
        IndexConstraint,
        "struct sqlite3_index_constraint",
        column = "iColumn",
        op = "op",
        usable = "usable",
        term_offset = "iTermOffset",
    );
    offsets!(
        all,
        IndexConstraintUsage,
        "struct sqlite3_index_constraint_usage",
        argv_index = "argvIndex",
        omit = "omit",
    );
    offsets!(
        all,
        IndexInfo,
        "sqlite3_index_info",
        constraints = "nConstraint",
        constraint = "aConstraint",
        order_bys = "nOrderBy",
        order_by = "aOrderBy",
        usage = "aConstraintUsage",
        number = "idxNum",
        text = "idxStr",
        text_is_sqlites = "needToFreeIdxStr",
        order_by_consumed = "orderByConsumed",
        cost = "estimatedCost",
    );
}

fn of_module(all: &mut Vec<(String, i64)>) {
    offsets!(
        all,
        Module,
        "sqlite3_module",
        version = "iVersion",
        create = "xCreate",
        connect = "xConnect",
        best_index = "xBestIndex",
        disconnect = "xDisconnect",
        destroy = "xDestroy",
        open = "xOpen",
        close = "xClose",
        filter = "xFilter",
        next = "xNext",
        eof = "xEof",
        column = "xColumn",
        rowid = "xRowid",
        update = "xUpdate",
        begin = "xBegin",
        sync = "xSync",
        commit = "xCommit",
        rollback = "xRollback",
        find_function = "xFindFunction",
        rename = "xRename",
    );
}

fn expected() -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> = Vec::new();
    of_io_methods(&mut all);
    of_vfs(&mut all);
    of_api_routines(&mut all);
    of_tables(&mut all);
    of_module(&mut all);
    all.push(("sizeof(sqlite3_vtab)".into(), size_of::<VTab>() as i64));
    all.push(("sizeof(sqlite3_vtab_cursor)".into(), size_of::<VTabCursor>() as i64));
    all.push(("sizeof(struct sqlite3_index_constraint)".into(), size_of::<IndexConstraint>() as i64));
    all.push((
        "sizeof(struct sqlite3_index_constraint_usage)".into(),
        size_of::<IndexConstraintUsage>() as i64,
    ));
    all.push(("sizeof(sqlite3_io_methods)".into(), size_of::<IoMethods>() as i64));
    all.push(("sizeof(sqlite3_vfs)".into(), size_of::<Vfs>() as i64));
    all.push(("sizeof(sqlite3_file)".into(), size_of::<File>() as i64));
    all.extend(ALL.iter().map(|(name, value)| ((*name).to_owned(), i64::from(*value))));
    all
}

#[test]
fn declarations_agree_with_the_header() {
    let include = Path::new("/usr/include/sqlite3ext.h");
    if !include.exists() {
        eprintln!("no sqlite3ext.h on this machine: layouts not compared");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut program =
        String::from("#include <stdio.h>\n#include <stddef.h>\n#include <sqlite3ext.h>\nint main(void) {\n");
    let expected = expected();
    for (expression, _) in &expected {
        writeln!(program, "  printf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    program.push_str("  return 0;\n}\n");
    let source = dir.path().join("layout.c");
    let binary = dir.path().join("layout");
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc").arg(&source).arg("-o").arg(&binary).status().unwrap();
    assert!(built.success());
    let output = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    let found: Vec<i64> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for ((expression, ours), theirs) in expected.iter().zip(found) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
