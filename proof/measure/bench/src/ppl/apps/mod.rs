//! The six applications. The paper gives table 3 and a paragraph about each. The tables and statements here
//! are invented so that they yield the same counts.

mod androbench;
mod browser;
mod facebook;
mod gmail;
mod kakaotalk;
mod twitter;

use super::app::App;

/// All applications, in the paper's order.
pub static ALL: [&App; 6] =
    [&kakaotalk::APP, &twitter::APP, &browser::APP, &facebook::APP, &gmail::APP, &androbench::APP];
