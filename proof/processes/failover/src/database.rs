//! The databases of the actors. Each transaction adds a page that contains the transaction's name. So if a
//! database lacks a transaction, the transaction's page has only zeros.

use bytes::Bytes;
use duralite_archive::{Archive, ArchiveError, Plan, Target};
use duralite_ltx::{Decoder, Encoder, Header, LtxError};

/// The names of transactions, in the order of their commits.
pub type History = Vec<u16>;

const PAGE_SIZE: u32 = 512;

/// Returns the archive's file with the transactions `min` to `max`. `history` is the history of the database
/// after them. The file has the pages of all transactions in `history` from the index `from` on.
///
/// # Panics
///
/// If the encoder refuses the file.
#[must_use]
pub fn file(history: &[u16], from: usize, min: u64, max: u64, time_ms: i64) -> Bytes {
    let header = Header {
        page_size: PAGE_SIZE,
        commit: history.len() as u32,
        min_txid: min,
        max_txid: max,
        timestamp_ms: time_ms,
        ..Header::default()
    };
    let encode = || {
        let mut encoder = Encoder::new(Vec::new(), header)?;
        let mut page = [0; PAGE_SIZE as usize];
        for (index, name) in history.iter().enumerate().skip(from) {
            page[..2].copy_from_slice(&name.to_be_bytes());
            encoder.page(index as u32 + 1, &page)?;
        }
        encoder.finish()
    };
    match encode() {
        Ok((bytes, _)) => Bytes::from(bytes),
        Err(error) => panic!("{error}"),
    }
}

/// Applies a file to a database.
fn apply(history: &mut History, bytes: &[u8]) -> Result<(), LtxError> {
    let mut decoder = Decoder::new(bytes)?;
    history.resize(decoder.header().commit as usize, 0);
    let mut page = [0; PAGE_SIZE as usize];
    while let Some(number) = decoder.next_page(&mut page)? {
        history[number as usize - 1] = u16::from_be_bytes([page[0], page[1]]);
    }
    decoder.finish().map(|_| ())
}

/// Restores a database according to a plan.
///
/// # Errors
///
/// Those of the archive.
pub async fn make(archive: &Archive, plan: &Plan) -> Result<History, ArchiveError> {
    let mut history = History::new();
    for step in &plan.steps {
        let bytes = archive.get(&step.key).await?;
        apply(&mut history, &bytes)
            .map_err(|error| ArchiveError::Damaged { key: step.key.to_string(), what: error.to_string() })?;
    }
    Ok(history)
}

/// Restores the database as it was at a moment, as a reader does. If an object no longer exists when the
/// reader fetches it, the reader lists the objects again.
///
/// # Errors
///
/// Those of the archive.
pub async fn restore(archive: &Archive, target: Target, most_lists: u32) -> Result<History, ArchiveError> {
    let mut left = most_lists;
    loop {
        left -= 1;
        let plan = archive.plan(target).await;
        let made = match plan {
            Ok(plan) => make(archive, &plan).await,
            Err(error) => Err(error),
        };
        match made {
            Err(error) if (error.is_missing() || error.is_temporary()) && left > 0 => {}
            made => return made,
        }
    }
}
