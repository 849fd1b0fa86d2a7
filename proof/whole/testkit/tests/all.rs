//! Tests of Duralite as a whole.

mod archive;
mod beside;
mod concurrent;
mod features;
mod follow;
mod forks;
mod guard;
mod histories;
mod kill;
mod mapped;
mod oracle;
mod page_change;
mod processes;
mod recovery;
mod region;
mod rollback;
mod side;
mod vec;
mod waldio;
