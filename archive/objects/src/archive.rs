//! An opened archive: the object store, and how this crate reads and writes the archive's objects there.

use std::fmt;
use std::fs::File;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
// This crate's manifest names `reqwest` only so that the store's client is compiled with TLS. Nothing here calls
// `reqwest`.
use object_store::{
    Attribute, Attributes, ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
};
use reqwest as _;

use super::client::Limits;
use super::error::ArchiveError;
use super::keys::{Generation, Key, Layout, Object, Replica};
use super::location::{Location, Store};
use super::records::{Claim, Start};

/// The name of the attribute in which Litestream keeps the time of an object's last transaction.
const TIMESTAMP: &str = "litestream-timestamp";

/// Whether a request has created an object, or found an object with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The request has created the object.
    Now,
    /// An object with this key existed already. Its content may be anything.
    Before,
}

/// An archive in an object store. A clone refers to the same archive.
#[derive(Clone)]
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    layout: Layout,
    /// Whether the store is a directory, so that each object is a file. The key of an object is then the file's path
    /// without the first slash.
    are_files: bool,
}

impl fmt::Debug for Archive {
    /// Writes everything but the store, because the store has the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive")
            .field("prefix", &self.prefix)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl Archive {
    /// Opens the archive at a location. Takes credentials from the environment. Sends no request to the store yet.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Credentials`] and [`ArchiveError::Store`] if the environment lacks something.
    pub fn open(location: &Location) -> Result<Self, ArchiveError> {
        // If the program has already chosen a library for TLS, this call fails and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let failed = ArchiveError::store("opening", &location.prefix);
        let (store, layout, are_files): (Arc<dyn ObjectStore>, _, _) = match &location.store {
            Store::S3 { bucket, endpoint, region } => {
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                check_credentials(&builder)?;
                builder = builder.with_http_connector(Limits::default());
                if let Some(region) = region {
                    builder = builder.with_region(region);
                }
                if let Some(endpoint) = endpoint {
                    builder = builder
                        .with_endpoint(endpoint.as_str().trim_end_matches('/'))
                        .with_virtual_hosted_style_request(false)
                        .with_allow_http(endpoint.scheme() == "http");
                }
                (Arc::new(builder.build().map_err(failed)?), Layout::Digits, false)
            }
            Store::Google { bucket } => {
                let builder = GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(bucket)
                    .with_http_connector(Limits::default());
                (Arc::new(builder.build().map_err(failed)?), Layout::Folders, false)
            }
            Store::Azure { container } => {
                let builder = MicrosoftAzureBuilder::from_env()
                    .with_container_name(container)
                    .with_http_connector(Limits::default());
                (Arc::new(builder.build().map_err(failed)?), Layout::Folders, false)
            }
            // The root of this store is `/`, not the archive's directory. That directory may not exist yet, and a read
            // must not create it.
            Store::Directory => (Arc::new(LocalFileSystem::new().with_fsync(true)), Layout::Folders, true),
            Store::Memory => (Arc::new(InMemory::new()), Layout::Digits, false),
        };
        Ok(Self { store, prefix: location.prefix.clone(), layout, are_files })
    }

    /// Returns an archive in a store that the caller has opened. Tests use this.
    #[must_use]
    pub fn on(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self { store, prefix, layout: Layout::Digits, are_files: false }
    }

    /// Returns the prefix of all keys.
    #[must_use]
    pub const fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Returns the key of a record.
    #[must_use]
    pub fn key(&self, key: Key) -> Path {
        self.generations().join(key.name())
    }

    /// Returns the key of an object directly below the archive's prefix.
    #[must_use]
    pub fn key_of(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Returns the objects of a generation.
    #[must_use]
    pub fn replica(&self, generation: Generation) -> Replica {
        Replica { prefix: self.key_of(&format!("g{generation}")), layout: self.layout }
    }

    /// Returns a replica with the archive's own prefix. Litestream's archives have no generations, so their objects are
    /// directly below that prefix.
    #[must_use]
    pub fn as_replica(&self) -> Replica {
        Replica { prefix: self.prefix.clone(), layout: self.layout }
    }

    /// Returns the keys of all claims and start records in the archive, sorted by name.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`].
    pub async fn records(&self) -> Result<Vec<Key>, ArchiveError> {
        let listed = self.list(&self.generations()).await?;
        let mut keys: Vec<Key> =
            listed.iter().filter_map(|meta| meta.location.filename().and_then(Key::parse)).collect();
        keys.sort_by_key(|key| key.name());
        Ok(keys)
    }

    /// Returns the claim of a generation, if there is one.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::Damaged`] if the claim cannot be read.
    pub async fn claim_of(&self, generation: Generation) -> Result<Option<Claim>, ArchiveError> {
        self.record(Key::Claim(generation), |claim: &Claim| claim.generation == generation).await
    }

    /// Returns the start record of a generation, if there is one.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::Damaged`] if the start record cannot be read.
    pub async fn start_of(&self, generation: Generation) -> Result<Option<Start>, ArchiveError> {
        self.record(Key::Start(generation), |start: &Start| start.generation == generation).await
    }

    /// Returns the objects of a replica, on all levels, sorted.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`].
    pub async fn objects(&self, replica: &Replica) -> Result<Vec<Object>, ArchiveError> {
        let listed = self.list(&replica.prefix).await?;
        let mut objects: Vec<Object> =
            listed.iter().filter_map(|meta| replica.parse(&meta.location, meta.size)).collect();
        objects.sort_unstable();
        Ok(objects)
    }

    /// Returns all objects below a prefix.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`].
    pub async fn list(&self, prefix: &Path) -> Result<Vec<ObjectMeta>, ArchiveError> {
        let listed = self.store.list(Some(prefix)).try_collect().await;
        listed.map_err(ArchiveError::store("listing", prefix))
    }

    /// Returns the content of an object.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]; [`ArchiveError::is_missing`] if there is no such object.
    pub async fn get(&self, key: &Path) -> Result<Bytes, ArchiveError> {
        let content = async { self.store.get(key).await?.bytes().await };
        content.await.map_err(ArchiveError::store("reading", key))
    }

    /// Returns a part of the content of an object.
    ///
    /// # Errors
    ///
    /// As [`Archive::get`].
    pub async fn get_range(&self, key: &Path, range: std::ops::Range<u64>) -> Result<Bytes, ArchiveError> {
        self.store.get_range(key, range).await.map_err(ArchiveError::store("reading", key))
    }

    /// Returns whether there is an object with this key.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`].
    pub async fn exists(&self, key: &Path) -> Result<bool, ArchiveError> {
        match self.store.head(key).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(ArchiveError::store("looking for", key)(error)),
        }
    }

    /// Creates an object, unless one with this key exists. `time_ms` is the time of the object's last transaction. The
    /// caller passes it only for objects that Litestream reads.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`]. The object may have been created nevertheless.
    pub async fn create(
        &self,
        key: &Path,
        content: PutPayload,
        time_ms: Option<i64>,
    ) -> Result<Created, ArchiveError> {
        let mut options = PutOptions::from(PutMode::Create);
        options.attributes = self.attributes(time_ms);
        match self.store.put_opts(key, content, options).await {
            Ok(_) => {
                self.set_time(key, time_ms)?;
                Ok(Created::Now)
            }
            Err(object_store::Error::AlreadyExists { .. }) => Ok(Created::Before),
            Err(error) => Err(ArchiveError::store("creating", key)(error)),
        }
    }

    /// Removes an object. It is no error if the object does not exist.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Store`].
    pub async fn delete(&self, key: &Path) -> Result<(), ArchiveError> {
        match self.store.delete(key).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(ArchiveError::store("deleting", key)(error)),
        }
    }

    /// Returns the store itself, for requests that this type does not offer.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Returns the attributes for an object whose last transaction was committed at `time_ms`.
    #[must_use]
    pub fn attributes(&self, time_ms: Option<i64>) -> Attributes {
        match time_ms {
            // In a directory, objects have no attributes, so Litestream uses the file's modification time.
            Some(time_ms) if !self.are_files => {
                Attributes::from_iter([(Attribute::Metadata(TIMESTAMP.into()), rfc3339(time_ms))])
            }
            _ => Attributes::new(),
        }
    }

    /// If the store is a directory, sets the modification time of an object's file. Litestream interprets it as the
    /// time of the object's last transaction.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::File`].
    pub fn set_time(&self, key: &Path, time_ms: Option<i64>) -> Result<(), ArchiveError> {
        let Some(time_ms) = time_ms.filter(|_| self.are_files) else { return Ok(()) };
        let path = FilePath::new("/").join(key.as_ref());
        let time = UNIX_EPOCH + Duration::from_millis(time_ms.unsigned_abs());
        let set = || File::options().append(true).open(&path)?.set_modified(time);
        set().map_err(ArchiveError::of_file(&path))
    }

    fn generations(&self) -> Path {
        self.key_of("generations")
    }

    async fn record<T: serde::de::DeserializeOwned>(
        &self,
        key: Key,
        is_right: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, ArchiveError> {
        let key = self.key(key);
        let content = match self.get(&key).await {
            Ok(content) => content,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = |what: String| ArchiveError::Damaged { key: key.to_string(), what };
        let record = serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
        if !is_right(&record) {
            return Err(damaged("it is the record of another generation".to_owned()));
        }
        Ok(Some(record))
    }
}

/// Checks that the environment says where the credentials for S3 come from. Without this check the store's client
/// would ask the machine's metadata service, which on most machines does not answer for minutes.
fn check_credentials(builder: &AmazonS3Builder) -> Result<(), ArchiveError> {
    use AmazonS3ConfigKey as Setting;
    let is_set = |setting: Setting| builder.get_config_value(&setting).is_some_and(|value| !value.is_empty());
    let is_anonymous = builder.get_config_value(&Setting::SkipSignature);
    let is_anonymous = is_anonymous
        .is_some_and(|said| ["1", "true", "on", "yes", "y"].iter().any(|yes| said.eq_ignore_ascii_case(yes)));
    let (key, secret) = (is_set(Setting::AccessKeyId), is_set(Setting::SecretAccessKey));
    let has_role = is_set(Setting::WebIdentityTokenFile) && is_set(Setting::RoleArn)
        || is_set(Setting::ContainerCredentialsRelativeUri)
        || is_set(Setting::ContainerCredentialsFullUri) && is_set(Setting::ContainerAuthorizationTokenFile)
        || is_set(Setting::MetadataEndpoint);
    let missing = match (key, secret) {
        _ if is_anonymous => return Ok(()),
        (true, true) => return Ok(()),
        (false, false) if has_role => return Ok(()),
        (true, false) => "AWS_SECRET_ACCESS_KEY is not set",
        (false, true) => "AWS_ACCESS_KEY_ID is not set",
        (false, false) => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
    };
    Err(ArchiveError::Credentials { missing })
}

/// Returns a time in the format of RFC 3339, in UTC.
pub(crate) fn rfc3339(time_ms: i64) -> String {
    let (days, ms) = (time_ms.div_euclid(86_400_000), time_ms.rem_euclid(86_400_000));
    let (year, month, day) = date(days);
    let (second, ms) = (ms / 1000, ms % 1000);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Returns the date that is `days` days after 1970-01-01. In this calculation each year begins in March, so that a leap
/// day is the last day of its year.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_in_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_709_251_199_987), "2024-02-29T23:59:59.987Z");
        assert_eq!(rfc3339(4_102_444_800_000), "2100-01-01T00:00:00.000Z");
    }
}
