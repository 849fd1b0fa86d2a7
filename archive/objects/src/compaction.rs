//! Compaction merges all transactions of a time span into one object, so that a restore reads few objects, and reads
//! each page once.
//!
//! Compaction only adds objects, and only for acknowledged transactions (invariant 74). The times of the transactions
//! decide which span they belong to, so the spans do not depend on when compaction runs. If a compaction is
//! interrupted, the next one continues it, and the objects that are uploaded already stay valid. If pruning has deleted
//! the oldest objects, compaction begins with the first object after them.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use bytes::Bytes;
use duralite_ltx::{HEADER_BYTES, Header, merge};
use futures_util::TryStreamExt as _;
use object_store::ObjectStoreExt as _;

use super::archive::Archive;
use super::chain::Chain;
use super::error::ArchiveError;
use super::keys::{Object, Replica, SNAPSHOTS};
use super::primary::Primary;

/// The lengths of the time spans on the levels 1, 2 and 3.
pub const SPANS: [Duration; 3] =
    [Duration::from_secs(30), Duration::from_secs(300), Duration::from_secs(3600)];

/// The known times of objects, by key. An object never changes, so neither does its time.
#[derive(Debug, Default)]
pub struct Times(BTreeMap<String, i64>);

impl Times {
    /// Returns the time of an object's last transaction. If the time is not known yet, reads it from the object's
    /// header.
    pub(crate) async fn of(
        &mut self,
        archive: &Archive,
        replica: &Replica,
        object: &Object,
    ) -> Result<i64, ArchiveError> {
        let key = replica.key(object);
        if let Some(time) = self.0.get(key.as_ref()) {
            return Ok(*time);
        }
        let bytes = archive.get_range(&key, 0..HEADER_BYTES as u64).await?;
        let header = <&[u8; HEADER_BYTES]>::try_from(&*bytes)
            .map_err(|_| duralite_ltx::LtxError::Damaged { offset: 0, what: "the file ends in its header" })
            .and_then(Header::decode)
            .map_err(ArchiveError::of_object(&key))?;
        self.0.insert(key.to_string(), header.timestamp_ms);
        Ok(header.timestamp_ms)
    }

    /// Forgets all times if there are more than `MOST`.
    pub(crate) fn limit(&mut self) {
        const MOST: usize = 1 << 14;
        if self.0.len() > MOST {
            self.0.clear();
        }
    }
}

/// The largest number of objects that are merged at once. Each of them needs a buffer in memory, and perhaps a
/// temporary file.
const MOST_MEMBERS: usize = 64;

/// An object that is being merged stays in memory if it has at most this many bytes.
const IN_MEMORY: usize = 128 << 10;

/// A merged object stays in memory if it has at most this many bytes. `PIECE` is the size of the pieces in which it is
/// uploaded.
const MERGED_IN_MEMORY: usize = 8 << 20;
const PIECE: usize = 1 << 20;

impl Primary {
    /// Adds the compacted objects that are due on each level, and returns their number. A level's last span is not due
    /// until there is a transaction after it. Merging reads and writes temporary files, so the calling thread must be
    /// allowed to block.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Fenced`]; [`ArchiveError::Store`]; [`ArchiveError::Damaged`] if an object cannot be read.
    pub async fn compact(&self, times: &mut Times) -> Result<usize, ArchiveError> {
        let mut objects = self.acknowledged_objects().await?;
        times.limit();
        let mut added = 0;
        for (level, span) in (1..).zip(SPANS) {
            for members in self.due(&objects, level, span, times).await? {
                objects.push(self.merge(&members, level).await?);
                added += 1;
            }
        }
        Ok(added)
    }

    /// Returns groups of objects of the level below `level`. Each group is to become one object on `level`.
    async fn due(
        &self,
        objects: &[Object],
        level: u8,
        span: Duration,
        times: &mut Times,
    ) -> Result<Vec<Vec<Object>>, ArchiveError> {
        let on = |level: u8| -> Vec<Object> {
            objects.iter().filter(|object| object.level == level).copied().collect()
        };
        let begin = begin(objects, level, self.start().base.txid);
        let done = Chain::new(&on(level), None, Some(begin)).states().last().copied().unwrap_or(begin);
        let replica = self.replica();
        let (mut groups, mut group, mut number): (Vec<Vec<Object>>, Vec<Object>, _) =
            (Vec::new(), Vec::new(), None);
        for object in chain(on(level - 1), done) {
            let time = times.of(self.archive(), &replica, &object).await?;
            let span_of = time.div_euclid(i64::try_from(span.as_millis()).unwrap_or(i64::MAX));
            if number.is_some_and(|number| number != span_of) || group.len() == MOST_MEMBERS {
                groups.push(std::mem::take(&mut group));
            }
            number = Some(span_of);
            group.push(object);
        }
        // The result leaves out the last group, because its span may still get transactions.
        Ok(groups)
    }

    /// Merges objects into one object on `level`, and uploads that object.
    async fn merge(&self, members: &[Object], level: u8) -> Result<Object, ArchiveError> {
        let replica = self.replica();
        let mut files = Vec::new();
        for member in members {
            files.push(self.fetch(&replica, member).await?);
        }
        let name = || replica.level(level);
        let merged = tempfile::SpooledTempFile::new(MERGED_IN_MEMORY);
        let (header, mut merged, bytes) =
            merge(files, merged).map_err(|error| ArchiveError::of_object(&name())(error))?;
        let object = Object { level, min: header.min_txid, max: header.max_txid, bytes };
        let of_file = || ArchiveError::of_file(std::path::Path::new("a temporary file"));
        merged.seek(SeekFrom::Start(0)).map_err(of_file())?;
        let pieces = std::iter::from_fn(|| {
            let mut piece = Vec::new();
            match (&mut merged).take(PIECE as u64).read_to_end(&mut piece) {
                Ok(0) => None,
                Ok(_) => Some(Ok(Bytes::from(piece))),
                Err(error) => Some(Err(of_file()(error))),
            }
        });
        self.put_stream(object, futures_util::stream::iter(pieces), header.timestamp_ms).await?;
        Ok(object)
    }

    /// Returns an object's content, in memory if the content is small, else in a temporary file without a name.
    async fn fetch(
        &self,
        replica: &Replica,
        object: &Object,
    ) -> Result<tempfile::SpooledTempFile, ArchiveError> {
        let key = replica.key(object);
        let of_file = || ArchiveError::of_file(std::path::Path::new("a temporary file"));
        let mut file = tempfile::SpooledTempFile::new(IN_MEMORY);
        let failed = || ArchiveError::store("reading", &key);
        let mut pieces = self.archive().store().get(&key).await.map_err(failed())?.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(failed())? {
            file.write_all(&piece).map_err(of_file())?;
        }
        file.seek(SeekFrom::Start(0)).map_err(of_file())?;
        Ok(file)
    }
}

/// Returns the state from which compaction starts on `level`: the base of the generation, or, after pruning, the state
/// before the oldest object that is left on `level` or on the level below. Pruning deletes every object that ends at or
/// before a certain snapshot. So if objects are missing after the oldest snapshot, the archive has lost them.
/// Compaction does not merge across such a gap.
fn begin(objects: &[Object], level: u8, base: u64) -> u64 {
    let of_levels = objects.iter().filter(|object| object.level == level || object.level + 1 == level);
    let first = of_levels.map(|object| object.min.saturating_sub(1)).min();
    let snapshots = objects.iter().filter(|object| object.level == SNAPSHOTS);
    let oldest = snapshots.map(|snapshot| snapshot.max).min();
    first.filter(|first| oldest.is_some_and(|oldest| *first <= oldest)).map_or(base, |first| first.max(base))
}

/// Returns a sequence of objects. The first object continues the state `from`, and each later object continues the one
/// before it. If several objects can come next, takes the one that ends last.
fn chain(mut left: Vec<Object>, from: u64) -> Vec<Object> {
    left.sort_unstable_by_key(|object| (object.min, object.max));
    let (mut chain, mut end, mut next) = (Vec::new(), from, 0);
    loop {
        let mut farthest: Option<Object> = None;
        while let Some(object) = left.get(next).filter(|object| object.min <= end + 1) {
            if object.max > farthest.map_or(end, |farthest| farthest.max) {
                farthest = Some(*object);
            }
            next += 1;
        }
        // An object that the loop did not choose ends no later than the chosen one, so it is not needed.
        let Some(object) = farthest else { return chain };
        end = object.max;
        chain.push(object);
    }
}
