//! Checks that restore and verify find damage and name the object, and that a failed restore leaves no file.

use duralite_archive::{ArchiveError, Generation, Line, Missing, Target};
use object_store::path::Path;

use super::common::{Database, Writer, in_memory, restored, time_of, wait};

/// Writes an archive with one object for each of the transactions 2 to 9, and with snapshots after transactions 1 and
/// 6.
fn archive() -> Writer {
    let mut writer = Writer::new(in_memory(), Database::new(512));
    for at in 2..10 {
        writer.commit("INSERT INTO t (text) VALUES (hex(randomblob(300)))");
        if at == 6 {
            writer.snapshot();
        }
    }
    writer
}

fn content(writer: &Writer, key: &Path) -> Vec<u8> {
    wait(writer.archive.get(key)).unwrap().to_vec()
}

/// Checks that a restore of the newest state fails, that the error names this object, and that it says what can be
/// restored instead. Also checks that `verify` finds the object.
fn assert_broken(writer: &Writer, key: &Path, words: &str, had: u64) {
    let error = restored(&writer.archive, Target::Latest).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(key.as_ref()) && text.contains(words), "{text}");
    assert!(
        text.ends_with(&format!("the last state that can be had is that after transaction {had}")),
        "{text}"
    );
    assert!(restored(&writer.archive, Target::Txid(had)).unwrap() == writer.states[&had]);
    let verified = wait(writer.archive.verify(4, None)).unwrap();
    assert!(!verified.is_sound());
    let [finding] = &verified.findings[..] else { panic!("{:?}", verified.findings) };
    assert!(finding.key == key.as_ref() && finding.what.contains(words), "{finding:?}");
    assert_eq!(verified.intact[0].last, Some(had));
}

#[test]
fn a_sound_archive_is_found_sound() {
    let writer = archive();
    let verified = wait(writer.archive.verify(4, None)).unwrap();
    assert!(verified.is_sound(), "{verified:?}");
    assert_eq!((verified.objects, verified.intact[0].states), (10, 9));
}

#[test]
fn a_damaged_object() {
    let writer = archive();
    let key = writer.key(0, 8, 8);
    let mut damaged = content(&writer, &key);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    writer.replace(&key, damaged);
    assert_broken(&writer, &key, "damaged at byte", 7);
}

#[test]
fn a_truncated_object() {
    for len in [0, 50, 100, 700] {
        let writer = archive();
        let key = writer.key(0, 8, 8);
        let whole = content(&writer, &key);
        writer.replace(&key, whole[..len].to_vec());
        assert_broken(&writer, &key, "the file ends", 7);
    }
}

#[test]
fn an_object_in_the_place_of_another() {
    let writer = archive();
    let key = writer.key(0, 8, 8);
    writer.replace(&key, content(&writer, &writer.key(0, 7, 7)));
    assert_broken(&writer, &key, "it has transactions 7 to 7", 7);
}

#[test]
fn an_object_of_another_generation() {
    let mut writer = archive();
    writer.begin(Generation::FIRST.next(), Some(Generation::FIRST), Line::Continues);
    writer.snapshot();
    writer.commit("DELETE FROM t");
    let key = writer.key(0, 10, 10);
    let own = content(&writer, &key);
    let mut foreign = own.clone();
    assert_eq!(foreign[79], 2);
    foreign[79] = 3;
    // Encode the pages again, so that the file has the checksum that another primary would have written.
    let header: &[u8; 100] = foreign[..100].try_into().unwrap();
    let header = duralite_ltx::Header::decode(header).unwrap();
    let mut decoder = duralite_ltx::Decoder::new(&own[..]).unwrap();
    let mut encoder = duralite_ltx::Encoder::new(Vec::new(), header).unwrap();
    let mut page = [0; 512];
    while let Some(number) = decoder.next_page(&mut page).unwrap() {
        encoder.page(number, &page).unwrap();
    }
    writer.replace(&key, encoder.finish().unwrap().0);
    assert_broken(&writer, &key, "it is of the generation 0000000000000003", 9);
}

#[test]
fn a_damaged_snapshot() {
    let writer = archive();
    let key = writer.key(9, 1, 6);
    writer.replace(&key, content(&writer, &writer.key(9, 1, 1)));
    let error = restored(&writer.archive, Target::Latest).unwrap_err().to_string();
    // The other objects are enough to restore every state, but the restore uses this snapshot. A user who reads this
    // error deletes the snapshot, and then the restore uses the other objects.
    assert!(error.contains(key.as_ref()) && error.ends_with("after transaction 9"), "{error}");
    let verified = wait(writer.archive.verify(4, None)).unwrap();
    assert_eq!((verified.findings.len(), verified.intact[0].last), (1, Some(9)));
    writer.delete(9, 1, 6);
    assert!(restored(&writer.archive, Target::Latest).unwrap() == writer.states[&9]);
}

#[test]
fn a_first_snapshot_that_is_not_what_the_start_record_says() {
    let writer = archive();
    let other = Writer::new(in_memory(), Database::new(512));
    other.database.sql.execute_batch("INSERT INTO t VALUES (1, 'other')").unwrap();
    let mut other = other;
    other.begin(Generation::FIRST.next(), Some(Generation::FIRST), Line::Other);
    other.generation = Some(Generation::FIRST);
    other.delete(9, 1, 1);
    other.snapshot();
    writer.replace(&writer.key(9, 1, 1), content(&other, &other.key(9, 1, 1)));
    let verified = wait(writer.archive.verify(4, None)).unwrap();
    assert!(
        verified.findings[0].what.contains("not the database that the generation's start record says"),
        "{verified:?}"
    );
}

#[test]
fn a_missing_object() {
    let writer = archive();
    writer.delete(0, 8, 8);
    let error = restored(&writer.archive, Target::Latest).unwrap_err();
    assert!(matches!(error, ArchiveError::Gap { first: 8, last: 8, had: Some(7) }), "{error}");
    for target in [Target::Txid(9), Target::Txid(8), Target::Time(time_of(9))] {
        let error = restored(&writer.archive, target).unwrap_err();
        assert!(matches!(error, ArchiveError::Gap { first: 8, last: 8, had: Some(7) }), "{error}");
    }
    assert!(restored(&writer.archive, Target::Time(time_of(8))).unwrap() == writer.states[&7]);
    let verified = wait(writer.archive.verify(4, None)).unwrap();
    assert!(!verified.is_sound() && verified.findings.is_empty());
    assert_eq!(verified.intact[0].missing, [Missing { first: 8, last: 8 }]);
    assert_eq!(wait(writer.archive.listed()).unwrap()[0].missing, [Missing { first: 8, last: 8 }]);
}

#[test]
fn a_record_that_cannot_be_read() {
    let writer = archive();
    let key = writer.archive.key(duralite_archive::Key::Start(Generation::FIRST));
    writer.replace(&key, "{}".as_bytes().to_vec());
    let error = restored(&writer.archive, Target::Latest).unwrap_err().to_string();
    assert!(error.contains(key.as_ref()), "{error}");
}
