//! Tests what a primary does when the store is unavailable for a while, refuses requests, is slow, or loses answers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use duralite_archive::{
    Archive, ArchiveError, Backoff, Begin, Line, Next, Object, Owner, Pauses, Policy, Primary,
    RestoreOptions, Resumed, Retry, Target, Times,
};
use duralite_ltx::{Encoder, Header};
use futures_util::future::{BoxFuture, ready};
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, Extensions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// What the store does to a request.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The store works as it should.
    None,
    /// The store answers 503.
    Unavailable,
    /// The request arrives, but its answer is lost.
    LostAnswer,
    /// The store answers 403.
    Forbidden,
    /// The store answers that the bucket is missing.
    NoBucket,
}

/// A store in memory. A test decides how its next requests fail.
#[derive(Debug, Default)]
struct Faulty {
    objects: InMemory,
    faults: Mutex<VecDeque<Fault>>,
    requests: AtomicU32,
    /// The number of reads that are running now. `most_reads` is the largest number of reads that were running at the
    /// same time.
    reads: AtomicU32,
    most_reads: AtomicU32,
    parts: Arc<Parts>,
}

/// How uploads in parts fail, and how many of them were completed or aborted. The store records the sizes of the parts,
/// and drops their contents.
#[derive(Debug, Default)]
struct Parts {
    bytes: Mutex<Vec<usize>>,
    /// The number of parts that the store accepts before one fails; `None` if none fails.
    taken: Mutex<Option<usize>>,
    does_not_complete: AtomicBool,
    completed: AtomicU32,
    aborted: AtomicU32,
}

/// An upload in parts. It counts the calls that abort it, and answers them with an error.
#[derive(Debug)]
struct Counting(Arc<Parts>);

fn refused(what: &str) -> Error {
    Error::Generic { store: "S3", source: what.into() }
}

#[async_trait]
impl MultipartUpload for Counting {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let mut bytes = self.0.bytes.lock().unwrap();
        let is_refused = self.0.taken.lock().unwrap().is_some_and(|taken| bytes.len() >= taken);
        bytes.push(data.content_length());
        Box::pin(ready(if is_refused { Err(refused("no part")) } else { Ok(()) }))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.0.does_not_complete.load(Ordering::Relaxed) {
            return Err(refused("not complete"));
        }
        self.0.completed.fetch_add(1, Ordering::Relaxed);
        Ok(PutResult { e_tag: None, version: None, extensions: Extensions::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.aborted.fetch_add(1, Ordering::Relaxed);
        Err(refused("not aborted"))
    }
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store that fails")
    }
}

impl Faulty {
    fn will(&self, faults: &[Fault]) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    async fn pass<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let generic = |text: &str| Error::Generic { store: "S3", source: text.into() };
        let next = self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match next.unwrap_or(Fault::None) {
            Fault::None => request.await,
            Fault::Unavailable => Err(generic("Server returned non-2xx status code: 503 Slow Down")),
            Fault::LostAnswer => {
                let _arrived = request.await;
                Err(generic("operation timed out"))
            }
            Fault::Forbidden => {
                Err(Error::PermissionDenied { path: "key".into(), source: "403 Forbidden".into() })
            }
            Fault::NoBucket => Err(Error::NotFound { path: "key".into(), source: "404 NoSuchBucket".into() }),
        }
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.pass(self.objects.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let upload: Box<dyn MultipartUpload> = Box::new(Counting(Arc::clone(&self.parts)));
        self.pass(ready(Ok(upload))).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_reads.fetch_max(reads, Ordering::Relaxed);
        // Other reads may begin now.
        tokio::task::yield_now().await;
        let got = self.pass(self.objects.get_opts(path, options)).await;
        self.reads.fetch_sub(1, Ordering::Relaxed);
        got
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A retry policy that counts the pauses and does not wait.
#[derive(Debug)]
struct Counted(Arc<AtomicU32>);

impl Pauses for Counted {
    fn pause<'a>(&'a self, attempts: u32, _reason: &'a ArchiveError) -> BoxFuture<'a, bool> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(ready(attempts < 20))
    }
}

struct Setup {
    store: Arc<Faulty>,
    archive: Archive,
    owner: Owner,
    pauses: Arc<AtomicU32>,
}

fn setup() -> Setup {
    let store = Arc::new(Faulty::default());
    let pauses = Arc::default();
    let owner = Owner {
        token: "1".repeat(32),
        node: "here".to_owned(),
        retry: Retry::new(Counted(Arc::clone(&pauses))),
    };
    let archive = Archive::on(Arc::<Faulty>::clone(&store), Path::from("db"));
    Setup { store, archive, owner, pauses }
}

fn header(min: u64, max: u64, time_ms: i64) -> Header {
    Header {
        page_size: 512,
        commit: max as u32,
        min_txid: min,
        max_txid: max,
        timestamp_ms: time_ms,
        ..Header::default()
    }
}

/// Returns an LTX file with some transactions. Each of them writes page 1, and the page that has the transaction's
/// number.
fn file(min: u64, max: u64, time_ms: i64) -> Bytes {
    let mut encoder = Encoder::new(Vec::new(), header(min, max, time_ms)).unwrap();
    encoder.page(1, &[max as u8; 512]).unwrap();
    for page in min.max(2)..=max {
        encoder.page(page as u32, &[page as u8; 512]).unwrap();
    }
    Bytes::from(encoder.finish().unwrap().0)
}

const BEGIN: Begin = Begin { pages: 1, page_size: 512, checksum: 7, time_ms: 0 };

impl Setup {
    async fn primary(&self) -> Primary {
        let claimed = self.archive.claim(&self.owner, 0).await.unwrap();
        let primary = claimed.start(None, Line::First, &BEGIN).await.unwrap();
        primary.upload_snapshot(stream::iter([Ok(file(1, 1, 0))]), 1, 0).await.unwrap();
        primary
    }
}

#[tokio::test]
async fn a_store_that_is_unavailable_for_a_while_is_asked_again() {
    let setup = setup();
    let primary = setup.primary().await;
    setup.store.will(&[Fault::Unavailable; 7]);
    primary.upload(file(2, 2, 5), 2, 2, 5).await.unwrap();
    assert_eq!(setup.pauses.load(Ordering::Relaxed), 7);
    setup.store.will(&[Fault::Unavailable; 3]);
    assert_eq!(primary.acknowledge().await.unwrap(), 2);
    assert_eq!(setup.archive.plan(Target::Latest).await.unwrap().txid, 2);
}

#[tokio::test]
async fn a_store_that_stays_unavailable_is_an_error_and_the_upload_can_be_repeated() {
    let setup = setup();
    let primary = setup.primary().await;
    setup.store.will(&[Fault::LostAnswer; 20]);
    let error = primary.upload(file(2, 2, 5), 2, 2, 5).await.unwrap_err();
    assert!(error.is_temporary(), "{error}");
    // The object has arrived in the store. But the primary counts it only after the store has confirmed that.
    assert_eq!((primary.uploaded(), primary.acknowledge().await.unwrap()), (1, 1));
    primary.upload(file(2, 2, 5), 2, 2, 5).await.unwrap();
    assert_eq!(primary.acknowledge().await.unwrap(), 2);
}

#[tokio::test]
async fn what_the_store_refuses_is_said_at_once() {
    for fault in [Fault::Forbidden, Fault::NoBucket] {
        let setup = setup();
        let primary = setup.primary().await;
        let before = setup.store.requests.load(Ordering::Relaxed);
        setup.store.will(&[fault]);
        let error = primary.upload(file(2, 2, 5), 2, 2, 5).await.unwrap_err();
        assert!(!error.is_temporary(), "{error}");
        assert_eq!(setup.store.requests.load(Ordering::Relaxed) - before, 1, "{error}");
        assert_eq!(setup.pauses.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test]
async fn inv69_an_answer_that_was_lost_is_settled_by_comparing() {
    let setup = setup();
    let primary = setup.primary().await;
    setup.store.will(&[Fault::LostAnswer]);
    primary.upload(file(2, 2, 5), 2, 2, 5).await.unwrap();
    assert_eq!(primary.uploaded(), 2);
    // Another program that believes itself to be this primary uploads other contents.
    let Resumed::Primary(other) = setup.archive.resume(&setup.owner, primary.generation()).await.unwrap()
    else {
        panic!("it is the primary")
    };
    primary.upload(file(3, 3, 6), 3, 3, 6).await.unwrap();
    let error = other.upload(file(3, 3, 7), 3, 3, 7).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Contradicted { .. }), "{error}");
    assert_eq!(other.acknowledge().await.unwrap(), 2);
}

#[tokio::test]
async fn inv65_a_claim_whose_answer_was_lost_is_ones_own() {
    let setup = setup();
    setup.store.will(&[Fault::LostAnswer]);
    let claimed = setup.archive.claim(&setup.owner, 0).await.unwrap();
    assert_eq!(claimed.generation().to_string(), "0000000000000001");
    let other = Owner { token: "2".repeat(32), ..setup.owner.clone() };
    assert_eq!(setup.archive.claim(&other, 0).await.unwrap().generation().to_string(), "0000000000000002");
}

#[tokio::test]
async fn inv66_a_primary_that_was_replaced_is_fenced_for_ever() {
    let setup = setup();
    let primary = setup.primary().await;
    let other = Owner { token: "2".repeat(32), node: "there".to_owned(), ..setup.owner.clone() };
    let claimed = setup.archive.claim(&other, 0).await.unwrap();
    primary.upload(file(2, 2, 5), 2, 2, 5).await.unwrap();
    let error = primary.acknowledge().await.unwrap_err();
    assert!(matches!(&error, ArchiveError::Fenced { node, .. } if node == "there"), "{error}");
    assert_eq!(primary.acknowledged(), 0);
    assert!(matches!(primary.compact(&mut Times::default()).await, Err(ArchiveError::Fenced { .. })));
    let resumed = setup.archive.resume(&setup.owner, primary.generation()).await.unwrap();
    assert!(matches!(resumed, Resumed::Fenced(_)), "{resumed:?}");
    // Pruning deletes nothing until the new primary has begun its generation.
    let policy = Policy::default();
    assert_eq!(setup.archive.prune(&policy, &setup.owner.retry, true).await.unwrap(), None);
    let inherited = claimed.inherited().await.unwrap().unwrap();
    assert_eq!(inherited.end, 2);
    let successor = claimed.start(Some(&inherited), Line::Continues, &BEGIN).await.unwrap();
    assert_eq!(successor.acknowledge().await.unwrap(), 2);
    assert_eq!((successor.start().first_txid, successor.start().base.txid), (3, 2));
}

#[tokio::test]
async fn inv67_nothing_is_acknowledged_before_the_base_where_the_line_has_a_gap() {
    let setup = setup();
    let primary = setup.primary().await;
    let claimed = primary.start_over(0).await.unwrap();
    let inherited = claimed.inherited().await.unwrap();
    let primary = claimed.start(inherited.as_ref(), Line::Gap, &BEGIN).await.unwrap();
    assert_eq!((primary.start().base.txid, primary.start().first_txid, primary.has_base()), (2, 3, false));
    primary.upload(file(3, 3, 6), 3, 3, 6).await.unwrap();
    assert_eq!(primary.acknowledge().await.unwrap(), 0);
    assert_eq!(setup.archive.plan(Target::Latest).await.unwrap().txid, 1);
    primary.upload_snapshot(stream::iter([Ok(file(1, 2, 5))]), 2, 5).await.unwrap();
    assert_eq!(primary.acknowledge().await.unwrap(), 3);
    assert_eq!(setup.archive.plan(Target::Latest).await.unwrap().txid, 3);
    let gap = primary.upload(file(5, 5, 7), 5, 5, 7).await;
    assert!(matches!(gap, Err(ArchiveError::Gap { first: 4, last: 4, .. })));
}

#[tokio::test]
async fn a_store_that_lets_a_key_be_created_twice_is_refused() {
    let setup = setup();
    setup.archive.probe(&setup.owner).await.unwrap();
    let overwrites = Archive::on(Arc::new(Overwrites(InMemory::new())), Path::from("db"));
    assert!(matches!(overwrites.probe(&setup.owner).await, Err(ArchiveError::Unfit)));
    assert!(setup.archive.list(&Path::from("db")).await.unwrap().is_empty());
    assert!(overwrites.list(&Path::from("db")).await.unwrap().is_empty());
}

/// A store that overwrites an object instead of refusing to create it again.
#[derive(Debug)]
struct Overwrites(InMemory);

impl std::fmt::Display for Overwrites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store that overwrites")
    }
}

#[async_trait]
impl ObjectStore for Overwrites {
    async fn put_opts(&self, path: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.0.put_opts(path, payload, PutOptions::default()).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn small_objects_are_fetched_more_at_a_time_than_large_ones() {
    let setup = setup();
    let primary = setup.primary().await;
    let dir = tempfile::tempdir().unwrap();
    let most_reads = async |name: &str| {
        setup.store.most_reads.store(0, Ordering::Relaxed);
        let options = RestoreOptions { parallel: 2, report: None };
        setup.archive.restore(Target::Latest, &dir.path().join(name), &options).await.unwrap();
        setup.store.most_reads.load(Ordering::Relaxed)
    };
    for txid in 2..=100 {
        primary.upload(file(txid, txid, txid as i64), txid, txid, txid as i64).await.unwrap();
    }
    assert_eq!(most_reads("small").await, 16);
    // A snapshot of seven megabytes that cannot be compressed comes in two pieces.
    let header = Header { page_size: 65_536, commit: 112, ..header(1, 101, 101) };
    let mut encoder = Encoder::new(Vec::new(), header).unwrap();
    let (mut random, mut page) = (fastrand::Rng::with_seed(1), vec![0; 65_536]);
    for number in 1..=112 {
        random.fill(&mut page);
        encoder.page(number, &page).unwrap();
    }
    let snapshot = Bytes::from(encoder.finish().unwrap().0);
    assert!(snapshot.len() > 6 << 20, "{}", snapshot.len());
    primary.upload_snapshot(stream::iter([Ok(snapshot)]), 101, 101).await.unwrap();
    assert_eq!(most_reads("large").await, 2);
}

#[tokio::test(start_paused = true)]
async fn pauses_are_random_and_end() {
    let setup = setup();
    let owner =
        Owner { retry: Retry::new(Backoff { attempts: 6, ..Backoff::default() }), ..setup.owner.clone() };
    let began = tokio::time::Instant::now();
    setup.store.will(&[Fault::Unavailable; 5]);
    setup.archive.claim(&owner, 0).await.unwrap();
    assert!(began.elapsed() <= std::time::Duration::from_millis(50 + 100 + 200 + 400 + 800 + 10));
    setup.store.will(&[Fault::Unavailable; 6]);
    assert!(setup.archive.claim(&owner, 0).await.unwrap_err().is_temporary());
}

#[tokio::test]
async fn inv74_spans_are_compacted_once_and_pruned_by_the_policy() {
    let setup = setup();
    let primary = setup.primary().await;
    let day = 86_400_000;
    // For an hour and a half there is a transaction every ten seconds. Then there is one on each of three days.
    let time = |txid: u64| if txid <= 541 { 10_000 * txid as i64 } else { day * (txid as i64 - 541) };
    for txid in 2..=544 {
        primary.upload(file(txid, txid, time(txid)), txid, txid, time(txid)).await.unwrap();
        if txid > 541 {
            primary
                .upload_snapshot(stream::iter([Ok(file(1, txid, time(txid)))]), txid, time(txid))
                .await
                .unwrap();
        }
    }
    primary.acknowledge().await.unwrap();
    let mut times = Times::default();
    let added = primary.compact(&mut times).await.unwrap();
    let objects = setup.archive.objects(&primary.replica()).await.unwrap();
    let on = |level: u8| objects.iter().filter(|object| object.level == level).count();
    assert_eq!((on(0), on(9)), (543, 4));
    assert_eq!(added, on(1) + on(2) + on(3));
    assert!(on(1) > 180 && on(1) < 190 && on(2) > 17 && on(2) < 24 && (1..=5).contains(&on(3)), "{added}");
    assert_eq!(primary.compact(&mut times).await.unwrap(), 0);
    // Compaction removes no state: each transaction still has a plan.
    for txid in [2, 3, 30, 181, 182, 361, 541, 544] {
        assert_eq!(setup.archive.plan(Target::Txid(txid)).await.unwrap().txid, txid);
    }
    let days = |days: u64| std::time::Duration::from_secs(86_400 * days);
    let policy = Policy { keep: days(100), transactions: days(100) };
    let nothing = setup.archive.prune(&policy, &setup.owner.retry, true).await.unwrap().unwrap();
    assert!(nothing.objects.is_empty(), "{nothing:?}");
    // From the first hours, pruning deletes the objects of single transactions. It keeps the objects that cover spans
    // of 30 seconds.
    let policy = Policy { keep: days(100), transactions: days(2) };
    let dry = setup.archive.prune(&policy, &setup.owner.retry, true).await.unwrap().unwrap();
    assert!(dry.objects.iter().all(|(_, object)| object.level == 0));
    assert_eq!(setup.archive.objects(&primary.replica()).await.unwrap(), objects);
    let done = setup.archive.prune(&policy, &setup.owner.retry, false).await.unwrap().unwrap();
    assert_eq!((done.objects.len(), done), (dry.objects.len(), dry));
    setup.archive.plan(Target::Txid(5)).await.unwrap();
    setup.archive.plan(Target::Txid(4)).await.unwrap_err();
    setup.archive.plan(Target::Txid(544)).await.unwrap();
    // With a shorter policy, pruning keeps only the snapshot of the day before yesterday and what comes after it.
    let policy = Policy { keep: days(1), transactions: days(1) };
    setup.archive.prune(&policy, &setup.owner.retry, false).await.unwrap().unwrap();
    let left = setup.archive.objects(&primary.replica()).await.unwrap();
    assert!(left.iter().all(|object| object.max >= 543), "{left:?}");
    setup.archive.plan(Target::Txid(543)).await.unwrap();
    setup.archive.plan(Target::Txid(544)).await.unwrap();
    assert_eq!(setup.archive.prune(&policy, &setup.owner.retry, false).await.unwrap().unwrap().objects, []);
}

/// A day in milliseconds.
const DAY: i64 = 86_400_000;

impl Setup {
    /// Uploads these transactions one by one, each ten seconds after the previous one.
    async fn upload(&self, primary: &Primary, txids: std::ops::RangeInclusive<u64>, begin: i64) {
        for txid in txids {
            let time = begin + 10_000 * txid as i64;
            primary.upload(file(txid, txid, time), txid, txid, time).await.unwrap();
        }
    }

    /// Prunes as much as possible: every object up to the newest snapshot that is the first of its day.
    async fn prune_all(&self) {
        let policy = Policy { keep: std::time::Duration::ZERO, ..Policy::default() };
        self.archive.prune(&policy, &self.owner.retry, false).await.unwrap().unwrap();
    }

    /// Returns the first and the last transaction of each object on a level.
    async fn on(&self, primary: &Primary, level: u8) -> Vec<(u64, u64)> {
        let objects = self.archive.objects(&primary.replica()).await.unwrap();
        let on = objects.iter().filter(|object| object.level == level);
        on.map(|object| (object.min, object.max)).collect()
    }
}

#[tokio::test]
async fn inv74_compaction_goes_on_behind_what_was_pruned_and_not_over_a_gap() {
    let setup = setup();
    let primary = setup.primary().await;
    setup.upload(&primary, 2..=10, 0).await;
    let mut times = Times::default();
    // Transaction 2 is in one span of 30 seconds, transactions 3 to 5 in the next, and 6 to 8 in the one after that.
    // The span with 9 and 10 is not over yet.
    assert_eq!(primary.compact(&mut times).await.unwrap(), 3);
    // There is a snapshot on the next day, and pruning keeps nothing before it.
    primary.upload_snapshot(stream::iter([Ok(file(1, 11, DAY))]), 11, DAY).await.unwrap();
    setup.prune_all().await;
    let left = setup.archive.objects(&primary.replica()).await.unwrap();
    assert_eq!(left.iter().map(|object| (object.level, object.max)).collect::<Vec<_>>(), [(9, 11)]);
    setup.upload(&primary, 12..=45, DAY).await;
    // Level 1 gets one object for every three transactions from 12 to 44. Level 2 gets one object, for the first 5
    // minutes.
    assert_eq!(primary.compact(&mut times).await.unwrap(), 12);
    let spans: Vec<_> = (12..45).step_by(3).map(|first| (first, first + 2)).collect();
    assert_eq!(setup.on(&primary, 1).await, spans);
    assert_eq!(setup.on(&primary, 2).await, [(12, 29)]);
    assert_eq!(primary.compact(&mut times).await.unwrap(), 0);
    // The missing object came after the snapshot. So pruning cannot have deleted it, and the archive has lost it.
    // Compaction does not merge across this gap.
    setup.upload(&primary, 46..=60, DAY).await;
    let lost = Object { level: 0, min: 50, max: 50, bytes: 0 };
    setup.archive.delete(&primary.replica().key(&lost)).await.unwrap();
    assert_eq!(primary.compact(&mut times).await.unwrap(), 1);
    assert_eq!(setup.on(&primary, 1).await.last(), Some(&(45, 47)));
    assert_eq!(setup.on(&primary, 2).await, [(12, 29)]);
}

#[tokio::test]
async fn inv68_a_copy_whose_way_was_pruned_needs_the_newest_state() {
    let setup = setup();
    let primary = setup.primary().await;
    let first = Some(primary.generation());
    setup.upload(&primary, 2..=10, 0).await;
    let settled = setup.archive.settled().await.unwrap().unwrap();
    assert!(matches!(settled.after(first, 5, None), Next::Step(step) if step.object.max == 6));
    assert_eq!(settled.after(first, 10, None), Next::Nothing);
    // There is a snapshot on the next day, and pruning keeps nothing before it.
    primary.upload_snapshot(stream::iter([Ok(file(1, 11, DAY))]), 11, DAY).await.unwrap();
    setup.prune_all().await;
    let settled = setup.archive.settled().await.unwrap().unwrap();
    assert_eq!(settled.after(first, 5, None), Next::Base);
    assert_eq!(settled.after(first, 11, None), Next::Nothing);
    // If a step may be unfinished, the copy is never up to date, even if the archive has no newer state.
    assert_eq!(settled.after(first, 11, Some(12)), Next::Base);
    setup.upload(&primary, 12..=13, DAY).await;
    let settled = setup.archive.settled().await.unwrap().unwrap();
    assert_eq!(settled.after(first, 5, None), Next::Base);
    assert!(matches!(settled.after(first, 11, None), Next::Step(step) if step.object.max == 12));
}

#[tokio::test]
async fn inv68_a_copy_whose_way_was_pruned_in_a_later_generation_needs_the_newest_state() {
    let setup = setup();
    let primary = setup.primary().await;
    let first = Some(primary.generation());
    setup.upload(&primary, 2..=3, 0).await;
    let other = Owner { token: "2".repeat(32), ..setup.owner.clone() };
    let claimed = setup.archive.claim(&other, 0).await.unwrap();
    let inherited = claimed.inherited().await.unwrap();
    let second = claimed.start(inherited.as_ref(), Line::Continues, &BEGIN).await.unwrap();
    let settled = setup.archive.settled().await.unwrap().unwrap();
    assert_eq!(settled.after(first, 3, None), Next::Nothing);
    setup.upload(&second, 4..=5, 0).await;
    let settled = setup.archive.settled().await.unwrap().unwrap();
    assert!(matches!(settled.after(first, 3, None), Next::Step(step) if step.object.max == 4));
    second.upload_snapshot(stream::iter([Ok(file(1, 6, DAY))]), 6, DAY).await.unwrap();
    setup.prune_all().await;
    let settled = setup.archive.settled().await.unwrap().unwrap();
    assert_eq!(settled.after(first, 3, None), Next::Base);
    assert_eq!(settled.after(Some(second.generation()), 6, None), Next::Nothing);
}

impl Setup {
    /// Prunes everything that is older than `days` days. Returns the level and the last transaction of each deleted
    /// object.
    async fn prune(&self, days: u64) -> Vec<(u8, u64)> {
        let days = std::time::Duration::from_secs(86_400 * days);
        let policy = Policy { keep: days, transactions: days };
        let pruned = self.archive.prune(&policy, &self.owner.retry, false).await.unwrap().unwrap();
        pruned.objects.iter().map(|(_, object)| (object.level, object.max)).collect()
    }

    /// Uploads a transaction, and a snapshot of the database after it.
    async fn upload_both(&self, primary: &Primary, txid: u64, time: i64) {
        primary.upload(file(txid, txid, time), txid, txid, time).await.unwrap();
        let snapshot = stream::iter([Ok(file(1, txid, time))]);
        primary.upload_snapshot(snapshot, txid, time).await.unwrap();
    }
}

/// Returns the time at which the present day began, in milliseconds since 1970.
fn today() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as i64 / DAY * DAY
}

#[tokio::test]
async fn inv74_a_commit_under_a_clock_that_is_ahead_makes_nothing_old() {
    let (setup, today) = (setup(), today());
    let primary = setup.primary().await;
    for txid in 2..=10 {
        setup.upload_both(&primary, txid, today - DAY * (11 - txid as i64)).await;
    }
    primary.upload(file(11, 11, today + 400 * DAY), 11, 11, today + 400 * DAY).await.unwrap();
    assert_eq!(setup.prune(30).await, []);
    let snapshot = stream::iter([Ok(file(1, 11, today + 400 * DAY))]);
    primary.upload_snapshot(snapshot, 11, today + 400 * DAY).await.unwrap();
    assert_eq!(setup.prune(30).await, []);
    // Once the clock is right again, pruning deletes old objects as usual. It keeps objects whose times are in the
    // future.
    primary.upload(file(12, 12, today), 12, 12, today).await.unwrap();
    assert_eq!(setup.prune(30).await, []);
    setup.prune(5).await;
    assert_eq!(setup.on(&primary, 9).await, (6..=11).map(|max| (1, max)).collect::<Vec<_>>());
    assert_eq!(setup.on(&primary, 0).await, (7..=12).map(|txid| (txid, txid)).collect::<Vec<_>>());
}

#[tokio::test]
async fn inv74_a_snapshot_under_a_clock_that_is_behind_makes_nothing_old() {
    let (setup, today) = (setup(), today());
    let primary = setup.primary().await;
    for txid in 2..=10 {
        setup.upload_both(&primary, txid, today - DAY * (11 - txid as i64)).await;
    }
    setup.upload_both(&primary, 11, DAY).await;
    primary.upload(file(12, 12, today), 12, 12, today).await.unwrap();
    assert_eq!(setup.prune(30).await, []);
    setup.prune(5).await;
    assert_eq!(setup.on(&primary, 9).await, (6..=11).map(|max| (1, max)).collect::<Vec<_>>());
}

const MIB: usize = 1 << 20;

/// Returns pieces of 8 MiB each. All pieces share the same bytes, so together they take the memory of one.
fn pieces(number: usize) -> impl Iterator<Item = std::result::Result<Bytes, ArchiveError>> {
    let piece = Bytes::from(vec![0; 8 * MIB]);
    (0..number).map(move |_| Ok(piece.clone()))
}

#[tokio::test]
async fn the_largest_object_of_s3_has_no_more_parts_than_s3_allows() {
    let setup = setup();
    let primary = setup.primary().await;
    // The parts of a 1 GiB object all have the smallest size, so that each takes little memory.
    primary.upload_snapshot(stream::iter(pieces(128)), 2, 5).await.unwrap();
    assert_eq!(std::mem::take(&mut *setup.store.parts.bytes.lock().unwrap()), [8 * MIB; 128]);
    // This object has 5 TiB.
    primary.upload_snapshot(stream::iter(pieces(5 << 17)), 3, 6).await.unwrap();
    let parts = std::mem::take(&mut *setup.store.parts.bytes.lock().unwrap());
    assert_eq!(parts.iter().sum::<usize>(), 5 << 40);
    assert!(parts.len() <= 10_000, "{}", parts.len());
    assert!(parts[..2500].iter().all(|part| *part == 8 * MIB));
    assert!(parts.iter().all(|part| *part <= 1400 * MIB));
    assert_eq!(setup.store.parts.completed.load(Ordering::Relaxed), 2);
    assert_eq!(setup.store.parts.aborted.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_upload_in_parts_that_fails_is_aborted_and_its_own_error_is_reported() {
    let setup = setup();
    let primary = setup.primary().await;
    let parts = &setup.store.parts;
    let aborted = || parts.aborted.load(Ordering::Relaxed);
    // If an upload in parts could not even begin, there is nothing to abort.
    setup.store.will(&[Fault::Unavailable]);
    primary.upload_snapshot(stream::iter(pieces(3)), 2, 5).await.unwrap_err();
    assert_eq!(aborted(), 0);
    *parts.taken.lock().unwrap() = Some(1);
    let error = primary.upload_snapshot(stream::iter(pieces(3)), 2, 5).await.unwrap_err();
    assert!(format!("{error:?}").contains("no part"), "{error:?}");
    assert_eq!(aborted(), 1);
    *parts.taken.lock().unwrap() = None;
    let broken = pieces(2).chain([Err(ArchiveError::Unfit)]);
    let error = primary.upload_snapshot(stream::iter(broken), 2, 5).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Unfit), "{error:?}");
    assert_eq!(aborted(), 2);
    parts.does_not_complete.store(true, Ordering::Relaxed);
    let error = primary.upload_snapshot(stream::iter(pieces(3)), 2, 5).await.unwrap_err();
    assert!(format!("{error:?}").contains("not complete"), "{error:?}");
    assert_eq!(aborted(), 3);
    assert_eq!((primary.uploaded(), parts.completed.load(Ordering::Relaxed)), (1, 0));
}
