//! The identity of the build: the version, and the build id that the builder gave it.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

/// Returns the version, and in brackets the value of `DURALITE_BUILD_ID` at the time of the build.
///
/// A build from the source tree has no build id. The id contains no time and no path, so the same source
/// gives the same bytes.
pub fn version() -> &'static str {
    text().to_str().unwrap_or(env!("CARGO_PKG_VERSION"))
}

/// Returns [`version`] as text for C. The text is never freed.
pub fn version_text() -> *const c_char {
    text().as_ptr()
}

fn text() -> &'static CStr {
    static TEXT: OnceLock<CString> = OnceLock::new();
    TEXT.get_or_init(|| {
        let version = env!("CARGO_PKG_VERSION");
        let text = option_env!("DURALITE_BUILD_ID")
            .map_or_else(|| version.to_owned(), |id| format!("{version} ({id})"));
        CString::new(text).unwrap_or_default()
    })
}

#[cfg(test)]
#[allow(unsafe_code)] // a test reads the text as C does
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package_and_the_same_for_c() {
        assert!(version().starts_with(env!("CARGO_PKG_VERSION")));
        // SAFETY: the text is static and ends with a zero.
        assert_eq!(unsafe { CStr::from_ptr(version_text()) }.to_str(), Ok(version()));
    }
}
