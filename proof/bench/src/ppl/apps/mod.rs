//! The six applications. What is known of them is table 3 and a paragraph each; tables and statements are
//! made so that they come to the same counts.

mod androbench;
mod browser;
mod facebook;
mod gmail;
mod kakaotalk;
mod twitter;

use super::app::App;

/// All, in the paper's order.
pub static ALL: [&App; 6] =
    [&kakaotalk::APP, &twitter::APP, &browser::APP, &facebook::APP, &gmail::APP, &androbench::APP];
