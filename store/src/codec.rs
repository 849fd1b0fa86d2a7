//! Encodes keys and values as bytes. Encoded keys sort like the keys themselves.

use std::borrow::Borrow;

/// A type that can be a key of a [`TypedTable`](crate::TypedTable). The encoded bytes of two keys compare like the
/// keys, and different keys have different bytes. A program that implements this trait for its own type has to keep
/// both rules.
///
/// Unsigned numbers are encoded with the largest byte first. Signed numbers have the sign bit inverted. Text and byte
/// strings are stored unchanged if they are the last part of the key. Otherwise 255 is inserted after each zero byte,
/// and two zero bytes mark the end. A tuple is encoded as the bytes of its parts, one after another.
///
/// ```
/// use duralite_store::Key;
/// let bytes = |key: &(i32, String)| {
///     let mut bytes = Vec::new();
///     <(i32, String) as Key>::encode_last(key, &mut bytes);
///     bytes
/// };
/// assert!(bytes(&(-1, "b".to_owned())) < bytes(&(1, "a".to_owned())));
/// ```
pub trait Key: Sized + Borrow<Self::Borrowed> {
    /// The type by which a program looks a key up; for `String` it is `str`.
    type Borrowed: ?Sized;

    /// Appends the encoded bytes of a value that is one part of a key, but not its last part.
    fn encode(key: &Self::Borrowed, out: &mut Vec<u8>);

    /// Appends the encoded bytes of a value that is the whole key, or its last part.
    fn encode_last(key: &Self::Borrowed, out: &mut Vec<u8>) {
        Self::encode(key, out);
    }

    /// Decodes the key at the beginning of `bytes`, and moves `bytes` past it. Returns `None` if there is no valid key.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;

    /// Decodes a key from bytes that contain nothing else. Returns `None` if they are no valid key.
    fn decode_last(mut bytes: &[u8]) -> Option<Self> {
        let key = Self::decode(&mut bytes)?;
        bytes.is_empty().then_some(key)
    }
}

/// A type that can be a value of a [`TypedTable`](crate::TypedTable).
///
/// ```
/// use duralite_store::Value;
/// /// A value of a program's own.
/// struct Point(u32, u32);
/// impl Value for Point {
///     type Borrowed = Self;
///     fn encode(value: &Self, out: &mut Vec<u8>) {
///         out.extend(value.0.to_le_bytes());
///         out.extend(value.1.to_le_bytes());
///     }
///     fn decode(bytes: &[u8]) -> Option<Self> {
///         let (x, y) = bytes.split_at_checked(4)?;
///         Some(Self(u32::from_le_bytes(x.try_into().ok()?), u32::from_le_bytes(y.try_into().ok()?)))
///     }
/// }
/// ```
pub trait Value: Sized + Borrow<Self::Borrowed> {
    /// The type in which a program passes a value to the store; for `String` it is `str`.
    type Borrowed: ?Sized;

    /// Appends the bytes of a value.
    fn encode(value: &Self::Borrowed, out: &mut Vec<u8>);

    /// Decodes a value. Returns `None` if the bytes are not a valid value.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

macro_rules! keys {
    ($($number:ty, $flip:expr;)*) => {$(
        impl Key for $number {
            type Borrowed = Self;

            fn encode(key: &Self, out: &mut Vec<u8>) {
                out.extend((key ^ $flip).to_be_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let bytes = take(bytes, size_of::<Self>())?;
                Some(Self::from_be_bytes(bytes.try_into().ok()?) ^ $flip)
            }
        }
    )*};
}

keys! {
    u8, 0; u16, 0; u32, 0; u64, 0; u128, 0;
    i8, i8::MIN; i16, i16::MIN; i32, i32::MIN; i64, i64::MIN; i128, i128::MIN;
}

macro_rules! values {
    ($($number:ty),*) => {$(
        impl Value for $number {
            type Borrowed = Self;

            fn encode(value: &Self, out: &mut Vec<u8>) {
                out.extend(value.to_le_bytes());
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

values!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

impl Key for bool {
    type Borrowed = Self;

    fn encode(key: &Self, out: &mut Vec<u8>) {
        out.push(u8::from(*key));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        match take(bytes, 1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl Value for bool {
    type Borrowed = Self;

    fn encode(value: &Self, out: &mut Vec<u8>) {
        out.push(u8::from(*value));
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        <Self as Key>::decode(&mut bytes).filter(|_| bytes.is_empty())
    }
}

impl Value for () {
    type Borrowed = Self;

    fn encode((): &Self, _: &mut Vec<u8>) {}

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.is_empty().then_some(())
    }
}

impl<const N: usize> Key for [u8; N] {
    type Borrowed = Self;

    fn encode(key: &Self, out: &mut Vec<u8>) {
        out.extend(key);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        take(bytes, N)?.try_into().ok()
    }
}

impl<const N: usize> Value for [u8; N] {
    type Borrowed = Self;

    fn encode(value: &Self, out: &mut Vec<u8>) {
        out.extend(value);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok()
    }
}

impl Key for Vec<u8> {
    type Borrowed = [u8];

    fn encode(key: &[u8], out: &mut Vec<u8>) {
        for byte in key {
            out.push(*byte);
            if *byte == 0 {
                out.push(u8::MAX);
            }
        }
        out.extend([0, 0]);
    }

    fn encode_last(key: &[u8], out: &mut Vec<u8>) {
        out.extend(key);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut key = Self::new();
        loop {
            match (take(bytes, 1)?, bytes.first()) {
                ([0], Some(0)) => {
                    take(bytes, 1)?;
                    return Some(key);
                }
                ([0], Some(&u8::MAX)) => {
                    take(bytes, 1)?;
                    key.push(0);
                }
                ([0], _) => return None,
                (byte, _) => key.extend(byte),
            }
        }
    }

    fn decode_last(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl Value for Vec<u8> {
    type Borrowed = [u8];

    fn encode(value: &[u8], out: &mut Vec<u8>) {
        out.extend(value);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(bytes.to_vec())
    }
}

impl Key for String {
    type Borrowed = str;

    fn encode(key: &str, out: &mut Vec<u8>) {
        <Vec<u8> as Key>::encode(key.as_bytes(), out);
    }

    fn encode_last(key: &str, out: &mut Vec<u8>) {
        out.extend(key.as_bytes());
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(<Vec<u8> as Key>::decode(bytes)?).ok()
    }

    fn decode_last(bytes: &[u8]) -> Option<Self> {
        Self::from_utf8(bytes.to_vec()).ok()
    }
}

impl Value for String {
    type Borrowed = str;

    fn encode(value: &str, out: &mut Vec<u8>) {
        out.extend(value.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::from_utf8(bytes.to_vec()).ok()
    }
}

macro_rules! tuples {
    ($(($($first:ident)*, $last:ident);)*) => {$(
        #[allow(non_snake_case)] // each part has the name of its type
        impl<$($first: Key,)* $last: Key> Key for ($($first,)* $last,) {
            type Borrowed = Self;

            fn encode(($($first,)* $last,): &Self, out: &mut Vec<u8>) {
                $($first::encode($first.borrow(), out);)*
                $last::encode($last.borrow(), out);
            }

            fn encode_last(($($first,)* $last,): &Self, out: &mut Vec<u8>) {
                $($first::encode($first.borrow(), out);)*
                $last::encode_last($last.borrow(), out);
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                Some(($($first::decode(bytes)?,)* $last::decode(bytes)?,))
            }

            fn decode_last(mut bytes: &[u8]) -> Option<Self> {
                let bytes = &mut bytes;
                Some(($($first::decode(bytes)?,)* $last::decode_last(bytes)?,))
            }
        }
    )*};
}

tuples! {
    (A, B);
    (A B, C);
    (A B C, D);
}
