//! An object store in memory. A test controls its network: every request waits until the test lets it arrive.
//!
//! The store behaves as the product assumes of every store: each request takes effect at one moment, and
//! every later request sees that effect. A list of many keys takes several requests.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use rustc_hash::FxHasher;

/// The content of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// Creates an object, if none with this key exists.
    Create(Path, Bytes),
    /// Writes an object. Replaces the object that has this key, if there is one.
    Overwrite(Path, Bytes),
    /// Returns the object's length and contents.
    Get(Path),
    /// Says whether the object exists.
    Head(Path),
    /// Returns the first keys that begin with a prefix and come after a key.
    List(Path, Option<Path>),
    /// Deletes the object.
    Delete(Path),
}

impl Ask {
    /// Returns whether the request changes the store. A late arrival matters only for such requests.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        matches!(self, Self::Create(..) | Self::Overwrite(..) | Self::Delete(_))
    }
}

impl std::fmt::Display for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Create(path, bytes) => write!(f, "create {path} ({:x})", hash_of(bytes) & 0xffff),
            Self::Overwrite(path, bytes) => write!(f, "overwrite {path} ({:x})", hash_of(bytes) & 0xffff),
            Self::Get(path) => write!(f, "get {path}"),
            Self::Head(path) => write!(f, "head {path}"),
            Self::List(prefix, None) => write!(f, "list {prefix}"),
            Self::List(prefix, Some(after)) => write!(f, "list {prefix} after {after}"),
            Self::Delete(path) => write!(f, "delete {path}"),
        }
    }
}

#[derive(Debug)]
enum Answer {
    Done,
    Object(ObjectMeta, Bytes),
    Keys(Vec<ObjectMeta>),
}

/// A request that an actor has sent. The actor waits for the answer.
#[derive(Debug)]
pub struct Request {
    /// The actor that waits.
    pub actor: usize,
    /// The content of the request.
    pub ask: Ask,
    number: u64,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<Request>,
    answers: BTreeMap<u64, Result<Answer>>,
    /// Requests whose actors have given up waiting. Each may arrive at any time, or never.
    late: Vec<Ask>,
    /// For each key in the store, a hash of the object's contents.
    contents: BTreeMap<Path, u64>,
    /// For each actor, a hash of everything that it has learned. If an actor has learned the same in two
    /// schedules, it is in the same state in both.
    learned: Vec<u64>,
    next: u64,
}

/// The store, and the requests that have not reached it yet.
#[derive(Debug)]
pub struct World {
    objects: InMemory,
    state: Mutex<State>,
    keys_in_a_list: usize,
    /// Whether each request arrives at once.
    is_instant: bool,
}

/// Returns a hash of a value.
pub fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

impl World {
    /// Makes an empty store. One answer to a list request has at most `keys_in_a_list` keys.
    #[must_use]
    pub fn new(actors: usize, keys_in_a_list: usize) -> Arc<Self> {
        let state = State { learned: vec![0; actors], ..State::default() };
        Arc::new(Self {
            objects: InMemory::new(),
            state: Mutex::new(state),
            keys_in_a_list,
            is_instant: false,
        })
    }

    /// Returns a copy of the store's present contents, without the waiting requests. The copy answers
    /// requests at once.
    #[must_use]
    pub fn as_it_is(&self) -> Arc<Self> {
        let state = State { learned: vec![0], ..State::default() };
        Arc::new(Self {
            objects: self.objects.fork(),
            state: Mutex::new(state),
            keys_in_a_list: usize::MAX,
            is_instant: true,
        })
    }

    /// Returns a client through which an actor uses the store.
    #[must_use]
    pub fn client(self: &Arc<Self>, actor: usize) -> Arc<dyn ObjectStore> {
        Arc::new(Client { world: Arc::clone(self), actor })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `read` with the requests whose actors still wait, and with the late requests.
    pub fn waiting<T>(&self, read: impl FnOnce(&[Request], &[Ask]) -> T) -> T {
        let state = self.state();
        read(&state.requests, &state.late)
    }

    /// Returns a hash of the contents of the store.
    #[must_use]
    pub fn contents(&self) -> u64 {
        hash_of(&self.state().contents)
    }

    /// Returns a hash of the store, the actors and the network. An actor's next actions depend only on what
    /// it has learned.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let state = self.state();
        let mut requests: Vec<_> =
            state.requests.iter().map(|request| (request.actor, &request.ask)).collect();
        requests.sort_unstable();
        let mut late: Vec<_> = state.late.iter().collect();
        late.sort_unstable();
        hash_of(&(&state.contents, &state.learned, requests, late))
    }

    /// Makes an actor forget what it has learned.
    pub fn begin_anew(&self, actor: usize) {
        self.state().learned[actor] = 1;
    }

    /// Records that an actor has learned something that was not an answer of the store.
    pub fn learn(&self, actor: usize, what: u64) {
        let learned = &mut self.state().learned[actor];
        *learned = hash_of(&(*learned, what));
    }

    /// Lets a waiting request arrive, and answers it. Returns the actor that was waiting.
    pub fn arrive(&self, index: usize, is_duplicated: bool) -> usize {
        let request = self.state().requests.remove(index);
        let answer = self.apply(&request.ask);
        if is_duplicated {
            self.state().late.push(request.ask.clone());
        }
        self.answer(&request, answer);
        request.actor
    }

    /// Lets a waiting request time out. The request may still arrive later. Returns the actor that was
    /// waiting.
    pub fn time_out(&self, index: usize) -> usize {
        let request = self.state().requests.remove(index);
        if request.ask.is_change() {
            self.state().late.push(request.ask.clone());
        }
        let timeout = Error::Generic { store: "model", source: "the answer did not come in time".into() };
        self.answer(&request, Err(timeout));
        request.actor
    }

    /// Lets a late request arrive.
    pub fn arrive_late(&self, index: usize) {
        let ask = self.state().late.remove(index);
        let _answered_to_nobody = self.apply(&ask);
    }

    fn answer(&self, request: &Request, answer: Result<Answer>) {
        let mut state = self.state();
        let said = match &answer {
            Ok(Answer::Done) => 1,
            Ok(Answer::Object(_, bytes)) => hash_of(bytes),
            Ok(Answer::Keys(keys)) => hash_of(&keys.iter().map(|meta| &meta.location).collect::<Vec<_>>()),
            Err(error) => hash_of(&std::mem::discriminant(error)),
        };
        let learned = &mut state.learned[request.actor];
        *learned = hash_of(&(*learned, &request.ask, said));
        state.answers.insert(request.number, answer);
    }

    fn apply(&self, ask: &Ask) -> Result<Answer> {
        let answer = self.apply_to_objects(ask);
        let mut state = self.state();
        match ask {
            Ask::Create(path, bytes) | Ask::Overwrite(path, bytes) if answer.is_ok() => {
                state.contents.insert(path.clone(), hash_of(bytes));
            }
            Ask::Delete(path) => {
                state.contents.remove(path);
            }
            _ => {}
        }
        answer
    }

    fn apply_to_objects(&self, ask: &Ask) -> Result<Answer> {
        match ask {
            Ask::Create(path, bytes) => {
                let options = PutOptions::from(PutMode::Create);
                at_once(self.objects.put_opts(path, bytes.clone().into(), options)).map(|_| Answer::Done)
            }
            Ask::Overwrite(path, bytes) => {
                at_once(self.objects.put(path, bytes.clone().into())).map(|_| Answer::Done)
            }
            Ask::Get(path) => at_once(async {
                let object = self.objects.get(path).await?;
                let meta = object.meta.clone();
                Ok(Answer::Object(meta, object.bytes().await?))
            }),
            Ask::Head(path) => {
                at_once(self.objects.head(path)).map(|meta| Answer::Object(meta, Bytes::new()))
            }
            Ask::List(prefix, after) => {
                let keys = match after {
                    None => self.objects.list(Some(prefix)),
                    Some(after) => self.objects.list_with_offset(Some(prefix), after),
                };
                at_once(keys.take(self.keys_in_a_list).try_collect()).map(Answer::Keys)
            }
            Ask::Delete(path) => at_once(self.objects.delete(path)).map(|()| Answer::Done),
        }
    }
}

/// Returns the result of a future that never has to wait.
fn at_once<T>(ends: impl Future<Output = Result<T>>) -> Result<T> {
    ends.now_or_never().unwrap_or_else(|| Err(Error::Generic { store: "model", source: "waits".into() }))
}

/// The client through which an actor uses the store.
#[derive(Debug)]
struct Client {
    world: Arc<World>,
    actor: usize,
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the model of a store")
    }
}

/// A request for whose answer an actor waits. Dropping this value ends the waiting. If the actor has been
/// killed, the request becomes a late one.
struct Wait<'a> {
    world: &'a World,
    number: u64,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = self.world.state();
        if let Some(index) = state.requests.iter().position(|request| request.number == self.number) {
            let request = state.requests.remove(index);
            if request.ask.is_change() {
                state.late.push(request.ask);
            }
        }
    }
}

impl Client {
    async fn ask(&self, ask: Ask) -> Result<Answer> {
        if self.world.is_instant {
            return self.world.apply(&ask);
        }
        let number = {
            let mut state = self.world.state();
            state.next += 1;
            let number = state.next;
            state.requests.push(Request { actor: self.actor, ask, number });
            number
        };
        let wait = Wait { world: &self.world, number };
        poll_fn(|_| wait.world.state().answers.remove(&number).map_or(Poll::Pending, Poll::Ready)).await
    }
}

fn unsupported<T>(operation: &str) -> Result<T> {
    Err(Error::NotImplemented { operation: operation.into(), implementer: "the model of a store".into() })
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let bytes = payload.into();
        let ask = match options.mode {
            PutMode::Create => Ask::Create(path.clone(), bytes),
            PutMode::Overwrite => Ask::Overwrite(path.clone(), bytes),
            PutMode::Update(_) => return unsupported("update"),
        };
        self.ask(ask).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: object_store::Extensions::default() })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        unsupported("multipart")
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let ask = if options.head { Ask::Head(path.clone()) } else { Ask::Get(path.clone()) };
        let Answer::Object(meta, bytes) = self.ask(ask).await? else {
            return unsupported("another answer");
        };
        let range = match options.range {
            None => 0..bytes.len() as u64,
            Some(range) => range
                .as_range(bytes.len() as u64)
                .map_err(|error| Error::Generic { store: "model", source: error.into() })?,
        };
        let piece = if options.head { bytes } else { bytes.slice(range.start as usize..range.end as usize) };
        Ok(GetResult {
            payload: GetResultPayload::Stream(futures_util::stream::iter([Ok(piece)]).boxed()),
            meta,
            range,
            attributes: object_store::Attributes::default(),
            extensions: object_store::Extensions::default(),
        })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let client = Self { world: Arc::clone(&self.world), actor: self.actor };
        paths
            .and_then(move |path| {
                let client = Self { world: Arc::clone(&client.world), actor: client.actor };
                async move { client.ask(Ask::Delete(path.clone())).await.map(|_| path) }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        after: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, Some(after.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let below: Vec<ObjectMeta> = self.list(prefix).try_collect().await?;
        let prefix = prefix.cloned().unwrap_or_default();
        let mut result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: object_store::Extensions::default(),
        };
        for meta in below {
            let mut parts = meta.location.prefix_match(&prefix).into_iter().flatten();
            match (parts.next(), parts.next()) {
                (Some(_), None) => result.objects.push(meta.clone()),
                (Some(first), Some(_)) => {
                    let below = prefix.clone().join(first);
                    if result.common_prefixes.last() != Some(&below) {
                        result.common_prefixes.push(below);
                    }
                }
                _ => {}
            }
        }
        Ok(result)
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unsupported("copy")
    }
}

impl Client {
    /// Returns the keys below a prefix, in order. Sends one request for each `keys_in_a_list` keys.
    fn list_after(
        &self,
        prefix: Option<&Path>,
        after: Option<Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let client = Self { world: Arc::clone(&self.world), actor: self.actor };
        let prefix = prefix.cloned().unwrap_or_default();
        let pages = futures_util::stream::try_unfold(Some(after), move |next| {
            let client = Self { world: Arc::clone(&client.world), actor: client.actor };
            let prefix = prefix.clone();
            async move {
                let Some(after) = next else { return Ok(None) };
                let Answer::Keys(keys) = client.ask(Ask::List(prefix, after)).await? else {
                    return unsupported("another answer");
                };
                let is_full = keys.len() == client.world.keys_in_a_list;
                let next = is_full.then(|| keys.last().map(|meta| meta.location.clone()));
                Ok(Some((futures_util::stream::iter(keys.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }
}
