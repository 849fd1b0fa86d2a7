//! Typed tables, compared with a map of the same types, and the order of encoded keys.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::collections::BTreeMap;
use std::fmt::Debug;

use duralite_store::{Error, Key, Options, Store, TypedTable};

fn bytes<K: Key>(key: &K) -> (Vec<u8>, Vec<u8>) {
    let (mut middle, mut last) = (Vec::new(), Vec::new());
    K::encode(key.borrow(), &mut middle);
    K::encode_last(key.borrow(), &mut last);
    (middle, last)
}

/// Checks that encoded keys sort like the keys, and that they can be decoded, even if more bytes follow.
fn check<K: Key + Ord + Debug>(keys: &[K]) {
    for a in keys {
        let (middle, last) = bytes(a);
        assert_eq!(K::decode_last(&last).as_ref(), Some(a));
        let with_more = [&middle[..], &[0xff, 0, 7]].concat();
        let mut rest = &with_more[..];
        assert_eq!(K::decode(&mut rest).as_ref(), Some(a));
        assert_eq!(rest, [0xff, 0, 7]);
        for b in keys {
            let (other, other_last) = bytes(b);
            assert_eq!(last.cmp(&other_last), a.cmp(b), "{a:?} {b:?}");
            // The order must not depend on the bytes that follow.
            if a != b {
                let order = [&middle[..], &[0xff]].concat().cmp(&[&other[..], &[0]].concat());
                assert_eq!(order, a.cmp(b), "{a:?} {b:?} with more behind");
            }
        }
    }
}

fn text(random: &mut fastrand::Rng) -> String {
    (0..random.usize(0..4)).map(|_| ['\0', '\u{1}', 'a', 'ÿ', '\u{10ffff}'][random.usize(0..5)]).collect()
}

#[test]
fn the_order_of_keys_is_that_of_their_bytes() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        macro_rules! numbers {
            ($($number:ident),*) => {$(
                let mut keys = vec![$number::MIN, $number::MAX, 0, 1, $number::MAX / 2];
                keys.extend((0..20).map(|_| random.$number(..)));
                check(&keys);
            )*};
        }
        numbers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);
        check(&[false, true]);
        let texts: Vec<String> = (0..30).map(|_| text(&mut random)).collect();
        check(&texts);
        let some_bytes = |random: &mut fastrand::Rng| -> Vec<u8> {
            (0..random.usize(0..4)).map(|_| [0, 1, 0xfe, 0xff][random.usize(0..4)]).collect()
        };
        let all: Vec<Vec<u8>> = (0..30).map(|_| some_bytes(&mut random)).collect();
        check(&all);
        let pairs: Vec<_> = (0..30).map(|_| (text(&mut random), random.i16(-2..2))).collect();
        check(&pairs);
        let more: Vec<_> = (0..30)
            .map(|_| (random.bool(), some_bytes(&mut random), text(&mut random), [random.u8(..), 0]))
            .collect();
        check(&more);
        let nested: Vec<_> =
            (0..30).map(|_| ((text(&mut random), random.u8(..)), random.i8(..), text(&mut random))).collect();
        check(&nested);
    }
}

#[test]
fn a_typed_table_is_a_map_of_its_types() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), Options::default()).unwrap();
    for seed in 0..10 {
        let table: TypedTable<(String, i32), String> = store.table(&format!("t{seed}")).unwrap().into();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = BTreeMap::new();
        let mut tx = store.begin();
        for _ in 0..200 {
            let key = (text(&mut random), random.i32(-3..3));
            match random.u8(0..4) {
                0 => assert_eq!(table.delete(&mut tx, &key).unwrap(), model.remove(&key).is_some()),
                1 => assert_eq!(table.get(&tx, &key).unwrap().as_ref(), model.get(&key)),
                2 => assert_eq!(table.get_for_update(&tx, &key).unwrap().as_ref(), model.get(&key)),
                _ => {
                    let value = text(&mut random);
                    table.put(&mut tx, &key, &value).unwrap();
                    model.insert(key, value);
                }
            }
        }
        let (a, b) = ((text(&mut random), 0), (text(&mut random), 1));
        let (from, to) = if a < b { (a, b) } else { (b, a) };
        let rows: Vec<_> = table.scan(&tx, from.clone()..to.clone()).map(Result::unwrap).collect();
        let own = |(key, value): (&(String, i32), &String)| (key.clone(), value.clone());
        let expected: Vec<_> = model.range(from..to).map(own).collect();
        assert_eq!(rows, expected, "seed {seed}");
        assert!(table.scan(&tx, ..).rev().map(Result::unwrap).eq(model.iter().rev().map(own)));
        tx.commit().unwrap();
        // Reading a row with other types is an error if the row does not fit them.
        let other: TypedTable<u8, u64> = table.table().clone().into();
        let wrong = other.scan(&store.begin(), ..).find_map(Result::err);
        assert!(matches!(wrong, Some(Error::NotOfType { .. })), "{wrong:?}");
    }
}
