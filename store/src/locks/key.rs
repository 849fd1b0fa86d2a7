//! Row keys, as part of the names of locks.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// The longest key that is stored in place, in bytes.
const SHORT: usize = 30;

/// A row key. A short key is stored in place, so that locking the row needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Self {
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..key.len()) {
            Some(short) => {
                short.copy_from_slice(key);
                Self::Short { len: key.len() as u8, bytes }
            }
            None => Self::Long(key.into()),
        }
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn keys_of_any_length_are_their_bytes_and_sort_as_they_do() {
        let keys: Vec<Vec<u8>> = (0..=64).map(|len| vec![7; len]).chain([vec![8], vec![6; 40]]).collect();
        for one in &keys {
            let key = Key::from(one.as_slice());
            assert_eq!(&*key, one.as_slice());
            for other in &keys {
                let ordering = key.cmp(&Key::from(other.as_slice()));
                assert_eq!(ordering, one.cmp(other));
                assert_eq!(key == Key::from(other.as_slice()), one == other);
            }
        }
    }
}
