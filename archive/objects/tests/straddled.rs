//! Tests what happens to a process that lists and fetches objects while other processes take over, compact and prune
//! the archive.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use duralite_archive::{
    Archive, ArchiveError, Begin, Generation, Inherited, Line, Owner, Policy, Retry, Target,
};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::common::{Database, Writer, restored, time_of, wait};

/// A function that the store calls just before a request arrives. Its argument describes the request.
type Watch = Box<dyn FnMut(&str) + Send>;

/// A store in memory that calls `watch` before each reading request arrives. Each answer to a list request has only one
/// key.
struct Watched {
    objects: Arc<InMemory>,
    watch: Mutex<Watch>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store that is watched")
    }
}

impl std::fmt::Display for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        (self.watch.lock().unwrap())(&format!("get {path}"));
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        // The stream must not borrow the store, so this function prepares all answers now. It calls `watch` before each
        // answer, and there the test may change the store.
        let prefix = prefix.cloned().unwrap_or_default();
        let (mut listed, mut after) = (Vec::new(), Path::default());
        loop {
            (self.watch.lock().unwrap())(&format!("list {prefix} after {after}"));
            let page = self.objects.list_with_offset(Some(&prefix), &after).take(1).try_collect();
            let page: Vec<ObjectMeta> = futures_util::FutureExt::now_or_never(page).unwrap().unwrap();
            let Some(next) = page.into_iter().next() else { break };
            after = next.location.clone();
            listed.push(Ok(next));
        }
        stream::iter(listed).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// Returns the archive in this store. The store calls `watch` before each reading request.
fn watched(objects: &Arc<InMemory>, watch: impl FnMut(&str) + Send + 'static) -> Archive {
    let watch = Mutex::new(Box::new(watch) as Watch);
    Archive::on(Arc::new(Watched { objects: Arc::clone(objects), watch }), PREFIX.into())
}

const PREFIX: &str = "db";
const INSERT: &str = "INSERT INTO t (text) VALUES (hex(randomblob(100)))";

/// Returns a store, and the first primary. This primary has archived each transaction up to `last` in a separate
/// object.
fn begun(last: u64) -> (Arc<InMemory>, Writer) {
    let objects = Arc::new(InMemory::new());
    let archive = Archive::on(Arc::<InMemory>::clone(&objects), PREFIX.into());
    let mut writer = Writer::new(archive, Database::new(512));
    (1..last).for_each(|_| writer.commit(INSERT));
    (objects, writer)
}

fn owner(machine: u8) -> Owner {
    Owner { token: format!("{machine:032x}"), node: machine.to_string(), retry: Retry::default() }
}

/// Another owner takes the archive over while the first primary still uploads transactions 5 and 6. Transaction 5 is
/// pruned before transaction 6 arrives.
fn take_over_and_prune(writer: &Writer, late: [Bytes; 2]) {
    let archive = writer.archive.clone();
    let done = async {
        let claimed = archive.claim(&owner(3), 0).await?;
        let inherited = claimed.inherited().await?;
        assert_eq!(inherited.as_ref().map(|inherited: &Inherited| inherited.end), Some(4));
        let begin = Begin { pages: 1, page_size: 512, checksum: 1, time_ms: 0 };
        claimed.start(inherited.as_ref(), Line::Continues, &begin).await.map(drop)
    };
    at_once(done).unwrap();
    let [fifth, sixth] = late;
    at_once(archive.create(&writer.key(0, 5, 5), fifth.into(), None)).unwrap();
    let pruned = at_once(archive.prune(&Policy::default(), &Retry::default(), false)).unwrap().unwrap();
    assert_eq!(pruned.objects.iter().map(|(_, object)| object.max).collect::<Vec<_>>(), [5]);
    at_once(archive.create(&writer.key(0, 6, 6), sixth.into(), None)).unwrap();
}

/// Returns the result of a future that never has to wait. The tests call this in the middle of another request.
fn at_once<T>(done: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(done).unwrap()
}

/// Returns a `watch` that calls [`take_over_and_prune`] when the listing of the first generation has reached
/// transaction 4.
fn straddled(mut writer: Writer) -> impl FnMut(&str) + Send {
    // Code within a request must not wait, so the test prepares the late uploads of the first primary beforehand.
    let late = [5, 6].map(|txid| {
        writer.commit(INSERT);
        let key = writer.key(0, txid, txid);
        let content = wait(writer.archive.get(&key)).unwrap();
        wait(writer.archive.delete(&key)).unwrap();
        content
    });
    let moment = format!("list {} after {}", writer.replica.prefix, writer.key(0, 4, 4));
    let mut waiting = Some((Mutex::new(writer), late));
    move |request| {
        if let Some((writer, late)) = waiting.take_if(|_| request == moment) {
            take_over_and_prune(&writer.lock().unwrap(), late);
        }
    }
}

#[test]
fn inv67_a_claimant_whose_list_straddles_a_takeover_and_a_pruning_is_fenced() {
    let (objects, writer) = begun(4);
    let archive = watched(&objects, straddled(writer));
    let found = wait(async { archive.claim(&owner(2), 0).await?.inherited().await });
    assert!(matches!(&found, Err(ArchiveError::Fenced { node, .. }) if node == "3"), "{found:?}");
}

#[test]
fn inv68_a_reader_whose_list_straddles_a_takeover_and_a_pruning_finds_no_gap() {
    for target in [Target::Latest, Target::Txid(4), Target::Time(i64::MAX)] {
        let (objects, writer) = begun(4);
        let expected = writer.states[&4].clone();
        let archive = watched(&objects, straddled(writer));
        assert!(restored(&archive, target).unwrap() == expected, "{target:?}");
    }
    let (objects, writer) = begun(4);
    let archive = watched(&objects, straddled(writer));
    assert!(wait(archive.listed()).unwrap().iter().all(|one| one.missing.is_empty()));
    let (objects, writer) = begun(4);
    let archive = watched(&objects, straddled(writer));
    let verified = wait(archive.verify(2, None)).unwrap();
    assert!(verified.is_sound(), "{verified:?}");
}

/// The listing reads the new generation before that generation has its snapshot. Then the listing reads the parent
/// generation, after pruning has deleted the objects that the snapshot replaces.
#[test]
fn inv68_a_list_that_straddles_a_snapshot_and_a_pruning_shows_no_gap() {
    let (objects, mut writer) = begun(4);
    let expected = {
        writer.begin(Generation::FIRST.next(), Some(Generation::FIRST), Line::Continues);
        writer.commit(INSERT);
        writer.states[&5].clone()
    };
    let parent = writer.archive.replica(Generation::FIRST);
    let moment = format!("list {} after ", parent.prefix);
    let snapshot = {
        // Code within a request must not wait, so the test encodes the snapshot beforehand.
        writer.snapshot();
        let key = writer.key(9, 1, 5);
        let content = wait(writer.archive.get(&key)).unwrap();
        wait(writer.archive.delete(&key)).unwrap();
        (key, content)
    };
    let archive = writer.archive.clone();
    let mut is_done = false;
    let follows = watched(&objects, move |request| {
        if request == moment && !is_done {
            is_done = true;
            at_once(archive.create(&snapshot.0, snapshot.1.clone().into(), None)).unwrap();
            for object in at_once(archive.objects(&parent)).unwrap() {
                at_once(archive.delete(&parent.key(&object))).unwrap();
            }
        }
    });
    let settled = wait(follows.settled()).unwrap().unwrap();
    assert_eq!(settled.newest().unwrap(), 5);
    assert!(restored(&follows, Target::Latest).unwrap() == expected);
}

#[test]
fn a_gap_that_is_there_is_said_after_the_second_list() {
    let (objects, writer) = begun(6);
    writer.delete(0, 4, 4);
    let lists = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&lists);
    let archive = watched(&objects, move |request| {
        *counted.lock().unwrap() += u32::from(request.ends_with("generations after "));
    });
    let error = restored(&archive, Target::Latest).unwrap_err();
    assert!(matches!(error, ArchiveError::Gap { first: 4, last: 4, had: Some(3) }), "{error}");
    assert_eq!(*lists.lock().unwrap(), 2);
}

/// Returns an archive that changes at the first request for the third object: an object of level 1 replaces the objects
/// of single transactions.
fn compacted_at_the_fetch_of_the_third(writer: &Writer, objects: &Arc<InMemory>) -> Archive {
    writer.compact(1, 2, 5);
    let compacted = writer.key(1, 2, 5);
    let content = wait(writer.archive.get(&compacted)).unwrap();
    wait(writer.archive.delete(&compacted)).unwrap();
    let (archive, third) = (writer.archive.clone(), format!("get {}", writer.key(0, 3, 3)));
    let singles = [2, 3, 4, 5].map(|txid| writer.key(0, txid, txid));
    watched(objects, move |request| {
        // A restore to a given time requests the third object twice, first for its header. The change must happen only
        // once.
        if request == third && at_once(archive.exists(&singles[3])).unwrap() {
            at_once(archive.create(&compacted, content.clone().into(), None)).unwrap();
            for single in &singles {
                at_once(archive.delete(single)).unwrap();
            }
        }
    })
}

#[test]
fn a_restore_takes_another_way_when_an_object_of_its_plan_is_pruned() {
    let (objects, writer) = begun(8);
    let archive = compacted_at_the_fetch_of_the_third(&writer, &objects);
    assert!(restored(&archive, Target::Latest).unwrap() == writer.states[&8]);
    assert!(wait(archive.exists(&writer.key(1, 2, 5))).unwrap());
}

#[test]
fn a_check_takes_no_object_for_missing_that_was_pruned_while_it_ran() {
    let (objects, writer) = begun(8);
    let archive = compacted_at_the_fetch_of_the_third(&writer, &objects);
    let verified = wait(archive.verify(1, None)).unwrap();
    assert!(verified.is_sound(), "{verified:?}");
}

#[test]
fn a_restore_of_a_state_that_is_pruned_meanwhile_says_so_or_takes_the_one_before() {
    let (objects, writer) = begun(8);
    let archive = compacted_at_the_fetch_of_the_third(&writer, &objects);
    let error = restored(&archive, Target::Txid(3)).unwrap_err();
    assert!(matches!(error, ArchiveError::NotThere { txid: 3, before: Some(1), after: Some(5) }), "{error}");
    // To plan a restore to a given time, this crate reads the headers of objects. So the objects may be replaced while
    // it makes the plan, or after that.
    let (objects, writer) = begun(8);
    let archive = compacted_at_the_fetch_of_the_third(&writer, &objects);
    assert!(restored(&archive, Target::Time(time_of(6))).unwrap() == writer.states[&6]);
}

#[test]
fn an_object_that_is_listed_and_is_not_there_is_named() {
    let (objects, writer) = begun(6);
    let (archive, key) = (writer.archive.clone(), writer.key(0, 4, 4));
    let content = wait(archive.get(&key)).unwrap();
    let (get, list) = (format!("get {key}"), format!("list {} after ", writer.replica.prefix));
    let name = key.clone();
    let faulty = watched(&objects, move |request| {
        if request == get {
            at_once(archive.delete(&key)).unwrap();
        } else if request == list {
            at_once(archive.create(&key, content.clone().into(), None)).unwrap();
        }
    });
    let error = restored(&faulty, Target::Latest).unwrap_err();
    assert!(matches!(error, ArchiveError::Broken { had: Some(3), .. }), "{error}");
    assert!(error.to_string().contains(name.as_ref()), "{error}");
}
