//! The location of an archive, as people write it:
//!
//! - `s3://bucket/prefix?endpoint=https://…&region=…`
//! - `gs://bucket/prefix`, `az://container/prefix`
//! - `file:///directory`
//! - `memory:`, for tests
//!
//! Credentials come from the environment (`AWS_ACCESS_KEY_ID` and its like), never from a location.

use std::fmt;
use std::str::FromStr;

use object_store::path::Path;
use url::Url;

use super::error::ArchiveError;

/// The location of an archive. `Display` prints it as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    text: String,
    url: Url,
    pub(crate) store: Store,
    /// The prefix of all keys.
    pub(crate) prefix: Path,
}

/// The kind of object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    S3 { bucket: String, endpoint: Option<Url>, region: Option<String> },
    Google { bucket: String },
    Azure { container: String },
    Directory,
    Memory,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Location {
    type Err = ArchiveError;

    fn from_str(text: &str) -> Result<Self, ArchiveError> {
        // The error does not repeat the text, because the user may have put credentials into it by mistake.
        let refused = |what: &str| ArchiveError::Location(what.to_owned());
        let url = Url::parse(text).map_err(|error| refused(&format!("{error}; it is written as {FORMS}")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused(
                "it has credentials; give them in the environment (AWS_ACCESS_KEY_ID and its like)",
            ));
        }
        if url.fragment().is_some() || url.port().is_some() {
            return Err(refused(&format!("it is written as {FORMS}")));
        }
        let (mut endpoint, mut region) = (None, None);
        for (name, value) in url.query_pairs() {
            match &*name {
                "endpoint" if url.scheme() == "s3" => endpoint = Some(parse_endpoint(&value)?),
                "region" if url.scheme() == "s3" => region = Some(value.into_owned()),
                _ => {
                    return Err(refused(
                        "after the ? only endpoint= and region= are known, and only for s3://",
                    ));
                }
            }
        }
        let host = || match url.host_str() {
            Some(host) if !host.is_empty() => Ok(host.to_owned()),
            _ => Err(refused("it names no bucket")),
        };
        let store = match url.scheme() {
            "s3" => Store::S3 { bucket: host()?, endpoint, region },
            "gs" => Store::Google { bucket: host()? },
            "az" => Store::Azure { container: host()? },
            "file" => {
                let path = url
                    .to_file_path()
                    .map_err(|()| refused("file: takes an absolute path, file:///directory"))?;
                if path.components().count() < 2 {
                    return Err(refused("file: takes a directory, file:///directory"));
                }
                Store::Directory
            }
            "memory" => Store::Memory,
            _ => return Err(refused(&format!("it is written as {FORMS}"))),
        };
        let prefix = match &store {
            Store::Memory => Path::default(),
            _ => Path::from_url_path(url.path().trim_matches('/'))
                .map_err(|error| refused(&format!("its prefix: {error}")))?,
        };
        Ok(Self { text: text.to_owned(), url, store, prefix })
    }
}

impl Location {
    /// Returns the URL of a prefix in the same store, for example of the prefix of one generation.
    #[must_use]
    pub fn of(&self, prefix: &Path) -> String {
        let mut url = self.url.clone();
        url.set_path(&format!("/{prefix}"));
        url.into()
    }
}

const FORMS: &str = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory";

fn parse_endpoint(value: &str) -> Result<Url, ArchiveError> {
    let refused = |what: &str| ArchiveError::Location(what.to_owned());
    let wrong = "endpoint= takes http://host:port or https://host:port";
    let url = Url::parse(value).map_err(|_| refused(wrong))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("its endpoint has credentials; give them in the environment"));
    }
    let is_plain = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.query().is_none()
        && url.fragment().is_none();
    is_plain.then_some(url).ok_or_else(|| refused(wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, String> {
        text.parse().map_err(|error: ArchiveError| error.to_string())
    }

    #[test]
    fn locations_are_read() {
        let location = parse("s3://bucket/a/b%20c/?endpoint=http://127.0.0.1:7070&region=eu-1").unwrap();
        assert_eq!(location.prefix, Path::from("a/b c"));
        let endpoint = Some(Url::parse("http://127.0.0.1:7070").unwrap());
        let region = Some("eu-1".to_owned());
        assert_eq!(location.store, Store::S3 { bucket: "bucket".into(), endpoint, region });
        assert_eq!(parse("s3://bucket").unwrap().prefix, Path::default());
        let directory = parse("file:///tmp/x").unwrap();
        assert_eq!((&directory.store, directory.prefix.as_ref()), (&Store::Directory, "tmp/x"));
        assert_eq!(directory.of(&directory.prefix.clone().join("g1")), "file:///tmp/x/g1");
        let replica = "s3://bucket/a/b%20c/g1?endpoint=http://127.0.0.1:7070&region=eu-1";
        assert_eq!(location.of(&location.prefix.clone().join("g1")), replica);
        assert_eq!(parse("memory:").unwrap().store, Store::Memory);
        assert_eq!(parse("gs://b/p").unwrap().store, Store::Google { bucket: "b".into() });
        assert_eq!(parse("az://c/p").unwrap().store, Store::Azure { container: "c".into() });
    }

    #[test]
    fn other_texts_are_refused_and_not_repeated() {
        for text in [
            "",
            "bucket/secret",
            "http://secret/prefix",
            "s3:///secret",
            "s3://user:secret@bucket/p",
            "s3://bucket/p?secret=x",
            "s3://bucket/p?endpoint=http://user:secret@host",
            "s3://bucket/p?endpoint=secret",
            "s3://bucket/p#secret",
            "s3://bucket:80/secret",
            "gs://bucket/p?region=secret",
            "file://host/secret",
            "file:///",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.contains("secret"), "{text}: {error}");
        }
    }
}
