//! Tests of Duralite as a whole, of its source, and of its documents.

mod beside;
mod concurrent;
mod documents;
mod features;
mod follow;
mod forks;
mod guard;
mod histories;
mod image;
mod kill;
mod limits;
mod limits_of_the_source;
mod mapped;
mod oracle;
mod page_change;
mod processes;
mod recovery;
mod region;
mod rollback;
mod rooms;
mod side;
mod structure;
mod vec;
mod waldio;
