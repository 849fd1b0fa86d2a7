//! `duralite checkpoint`: back to one plain SQLite file.

use std::process::ExitCode;

use anyhow::{Result, bail};
use duralite_journal::offline;
use duralite_logfmt::guard::DatabaseHeader;
use serde_json::json;

use crate::{Target, locate, print_json, print_text};

pub(crate) fn run(target: &Target, adopt: bool, discard_log: bool) -> Result<ExitCode> {
    let path = &target.path;
    let id = match offline::inspect(path)? {
        DatabaseHeader::Guarded { log_id, .. } => log_id,
        DatabaseHeader::Damaged if discard_log => {
            offline::discard_log(path)?;
            return done(target, "discarded", "guard lifted; check the database with PRAGMA integrity_check");
        }
        header @ DatabaseHeader::Plain { .. } => {
            return done(
                target,
                "nothing to do",
                &format!("{} is {}", path.display(), locate::describe(header)),
            );
        }
        header => bail!("{} is {}", path.display(), locate::describe(header)),
    };
    let pool = locate::find(target, id);
    if discard_log {
        if let Some(pool) = pool {
            bail!(
                "the log is not lost: it is {}; fold it in without --discard-log",
                pool.log_path(id).display()
            );
        }
        offline::discard_log(path)?;
        return done(target, "discarded", "guard lifted; check the database with PRAGMA integrity_check");
    }
    let Some(pool) = pool else { bail!(locate::missing(target, id)) };
    let folded = offline::fold(&pool, path, id, adopt)?;
    let kept =
        folded.kept.map_or_else(String::new, |log| format!("; the log was put aside as {}", log.display()));
    let text =
        format!("{} pages written; {} is a plain SQLite database now{kept}", folded.pages, path.display());
    done(target, "folded", &text)
}

fn done(target: &Target, outcome: &str, text: &str) -> Result<ExitCode> {
    if target.json {
        print_json(&json!({ "outcome": outcome, "message": text }))?;
    } else {
        print_text(&format!("{text}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
