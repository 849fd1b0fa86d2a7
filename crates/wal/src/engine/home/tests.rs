use std::fs::File;
use std::sync::Mutex;

use duralite_format::LogId;

use super::*;

/// A file in memory that records the calls made to it.
#[derive(Default)]
struct Recorded {
    bytes: Mutex<Vec<u8>>,
    calls: Mutex<Vec<String>>,
    /// The error code that every call returns; `None` if calls succeed.
    refuses: Option<i32>,
}

impl Recorded {
    fn of(bytes: Vec<u8>) -> Self {
        Self { bytes: Mutex::new(bytes), ..Self::default() }
    }

    fn note(&self, op: &'static str, call: String) -> Result<(), LogError> {
        self.calls.lock().unwrap().push(call);
        self.refuses.map_or(Ok(()), |code| Err(LogError::BaseVfs { op, code }))
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }
}

impl DatabaseFile for Recorded {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        self.note("read", format!("read {offset}+{}", buf.len()))?;
        let bytes = self.bytes.lock().unwrap();
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let count = there.len().min(buf.len());
        buf[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write(&self, data: &[u8], offset: u64) -> Result<(), LogError> {
        self.note("write", format!("write {offset}+{}", data.len()))?;
        let mut bytes = self.bytes.lock().unwrap();
        let end = offset as usize + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> Result<(), LogError> {
        self.note("sync", "sync".to_owned())
    }

    fn size(&self) -> Result<u64, LogError> {
        self.note("size", "size".to_owned())?;
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.note("truncate", format!("truncate {bytes}"))?;
        self.bytes.lock().unwrap().truncate(bytes as usize);
        Ok(())
    }
}

const KEY: u8 = 0x5A;

/// A home that XORs every byte that it stores in the file with `KEY`.
struct Xor;

impl Home for Xor {
    fn header(&self) -> Header {
        Header::File
    }

    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let count = file.read(buf, offset)?;
        buf[..count].iter_mut().for_each(|byte| *byte ^= KEY);
        Ok(count)
    }

    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte ^ KEY).collect();
        file.write(&bytes, offset)
    }

    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        file.sync()
    }

    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        file.size()
    }

    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), LogError> {
        file.truncate(bytes)
    }

    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        let mut rest = vec![0; file.size()? as usize - HEADER_BYTES];
        self.read(file, &mut rest, HEADER_BYTES as u64)?;
        file.write(&rest, HEADER_BYTES as u64)?;
        file.sync()
    }
}

/// A home that holds one page in memory, with its header, until it is drained.
#[derive(Default)]
struct Held(Mutex<Option<Vec<u8>>>);

impl Home for Held {
    fn header(&self) -> Header {
        Header::Held
    }

    fn read(&self, file: &dyn DatabaseFile, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let held = self.0.lock().unwrap();
        let Some(held) = &*held else { return file.read(buf, offset) };
        let there = held.get(offset as usize..).unwrap_or_default();
        let count = there.len().min(buf.len());
        buf[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write(&self, file: &dyn DatabaseFile, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let mut whole = vec![0; 512];
        self.read(file, &mut whole, 0)?;
        whole[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        *self.0.lock().unwrap() = Some(whole);
        Ok(())
    }

    fn sync(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        file.sync()
    }

    fn size(&self, file: &dyn DatabaseFile) -> Result<u64, LogError> {
        file.size()
    }

    fn truncate(&self, file: &dyn DatabaseFile, bytes: u64) -> Result<(), LogError> {
        file.truncate(bytes)
    }

    fn drain(&self, file: &dyn DatabaseFile) -> Result<(), LogError> {
        if let Some(held) = &*self.0.lock().unwrap() {
            write_past_guard(file, held, 0)?;
        }
        file.sync()
    }
}

/// Returns page 1 in two forms: as SQLite sees it, and as it is on disk under a guard.
fn first_page(seed: u8) -> [Vec<u8>; 2] {
    let mut bare = page(seed);
    guard::unmask(0, &mut bare);
    let mut guarded = bare.clone();
    guard::mask(0, &mut guarded, LogId([seed; 16]));
    [bare, guarded]
}

fn page(seed: u8) -> Vec<u8> {
    (0..512_u32).map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed)).collect()
}

fn other(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ KEY).collect()
}

#[test]
fn without_a_home_every_call_is_the_files() {
    let file = Recorded::of(page(1));
    let homed = Homed::new(&file, None);
    let mut buf = vec![0; 512];
    assert_eq!(homed.read(&mut buf, 0).unwrap(), 512);
    assert_eq!(buf, page(1));
    homed.write(&page(2), 512).unwrap();
    assert_eq!(homed.size().unwrap(), 1024);
    homed.truncate(512).unwrap();
    homed.sync().unwrap();
    homed.drain().unwrap();
    assert_eq!(file.calls(), ["read 0+512", "write 512+512", "size", "truncate 512", "sync"]);
    assert_eq!(file.bytes(), page(1));
}

#[test]
fn inv01_the_header_is_the_files_own_and_the_rest_is_the_homes() {
    let file = Recorded::default();
    let homed = Homed::new(&file, Some(Arc::new(Xor)));
    homed.write(&page(3), 0).unwrap();
    homed.write(&page(4), 512).unwrap();
    let mut expected = page(3);
    expected[HEADER_BYTES..].copy_from_slice(&other(&page(3)[HEADER_BYTES..]));
    expected.extend(other(&page(4)));
    assert_eq!(file.bytes(), expected);
    let whole = [page(3), page(4)].concat();
    // Ranges inside the header, across its end and after it, and ranges across pages.
    for (offset, len) in
        [(0, 512), (0, 100), (24, 16), (0, 101), (90, 20), (99, 1), (100, 1), (100, 412), (300, 400)]
    {
        let mut buf = vec![0; len];
        assert_eq!(homed.read(&mut buf, offset).unwrap(), len);
        assert_eq!(buf, whole[offset as usize..][..len], "{offset}+{len}");
        homed.write(&buf, offset).unwrap();
        assert_eq!(file.bytes(), expected, "{offset}+{len}");
    }
}

#[test]
fn another_page_size_or_mode_shows_in_the_file_though_a_home_holds_the_header() {
    for (at, value) in [(17, 99), (18, 0xD8), (20, 99)] {
        let [_, mut page] = first_page(3);
        let file = Recorded::of(page.clone());
        let homed = Homed::new(&file, Some(Arc::new(Held::default())));
        page[at] = value;
        page[300] ^= 1;
        homed.write(&page, 0).unwrap();
        assert_eq!(file.bytes()[..HEADER_BYTES], page[..HEADER_BYTES], "byte {at}");
        assert_ne!(file.bytes()[300], page[300], "the rest is the home's");
    }
}

#[test]
fn the_home_is_not_asked_for_what_is_in_the_header() {
    struct Untouched;
    #[rustfmt::skip]
    impl Home for Untouched {
        fn header(&self) -> Header { Header::File }
        fn read(&self, _: &dyn DatabaseFile, _: &mut [u8], _: u64) -> Result<usize, LogError> { panic!("read") }
        fn write(&self, _: &dyn DatabaseFile, _: &[u8], _: u64) -> Result<(), LogError> { panic!("write") }
        fn sync(&self, _: &dyn DatabaseFile) -> Result<(), LogError> { panic!("sync") }
        fn size(&self, _: &dyn DatabaseFile) -> Result<u64, LogError> { panic!("size") }
        fn truncate(&self, _: &dyn DatabaseFile, _: u64) -> Result<(), LogError> { panic!("truncate") }
        fn drain(&self, _: &dyn DatabaseFile) -> Result<(), LogError> { panic!("drain") }
    }
    let file = Recorded::of(page(5));
    let homed = Homed::new(&file, Some(Arc::new(Untouched)));
    let mut buf = [0; HEADER_BYTES];
    assert_eq!(homed.read(&mut buf, 0).unwrap(), HEADER_BYTES);
    homed.write(&buf[18..20], 18).unwrap();
    assert_eq!(file.calls(), ["read 0+100", "write 18+2"]);
}

#[test]
fn inv01_a_home_that_holds_the_header_is_never_handed_the_guard_and_it_shows_as_it_is_on_disk() {
    let ([_, on_disk], [mut bare, mut guarded]) = (first_page(3), first_page(4));
    // In WAL mode, neither the page size nor the number of reserved bytes at the end of each page changes.
    for at in [16, 17, 20] {
        (bare[at], guarded[at]) = (on_disk[at], on_disk[at]);
    }
    let file = Recorded::of(on_disk.clone());
    let held = Arc::new(Held::default());
    let homed = Homed::new(&file, Some(held.clone()));
    homed.write(&guarded, 0).unwrap();
    assert_eq!(held.0.lock().unwrap().as_ref(), Some(&bare));
    assert_eq!(file.bytes(), on_disk, "nothing is written past the home");
    guard::show(&on_disk, 0, &mut guarded);
    for (offset, len) in
        [(0, 512), (0, 100), (16, 16), (24, 16), (60, 20), (80, 40), (91, 1), (92, 20), (100, 412)]
    {
        let (range, mut buf) = (offset as usize..offset as usize + len, vec![0; len]);
        assert_eq!(homed.read(&mut buf, offset).unwrap(), len);
        assert_eq!(buf, guarded[range.clone()], "{offset}+{len}");
        homed.write(&buf, offset).unwrap();
        assert_eq!(held.0.lock().unwrap().as_ref(), Some(&bare), "{offset}+{len}");
    }
    // Draining does not touch the guard on disk, even if the guard is damaged.
    homed.drain().unwrap();
    assert_eq!(file.bytes(), guarded);
    file.bytes.lock().unwrap()[80] ^= 1;
    homed.drain().unwrap();
    guarded[80] ^= 1;
    assert_eq!(file.bytes(), guarded);
}

#[test]
fn inv01_of_a_file_that_ends_in_the_guard_as_much_shows_as_there_is() {
    let ([_, on_disk], [bare, _]) = (first_page(5), first_page(6));
    for length in [0, 19, 80] {
        let file = Recorded::of(on_disk[..length].to_vec());
        let homed = Homed::new(&file, Some(Arc::new(Held(Mutex::new(Some(bare.clone()))))));
        let mut expected = bare.clone();
        guard::show(&on_disk[..length], 0, &mut expected);
        let mut buf = vec![0; 512];
        assert_eq!(homed.read(&mut buf, 0).unwrap(), 512);
        assert_eq!(buf, expected);
        write_past_guard(&file, &bare, 0).unwrap();
        assert_eq!(file.bytes(), expected);
    }
}

#[test]
fn who_has_no_database_file_is_told_so() {
    let refused: [Result<(), LogError>; 5] = [
        NoDatabase.read(&mut [0], 0).map(drop),
        NoDatabase.write(&[0], 0),
        NoDatabase.sync(),
        NoDatabase.size().map(drop),
        NoDatabase.truncate(0),
    ];
    for refused in refused {
        assert!(refused.unwrap_err().to_string().contains("no database file"));
    }
}

#[test]
fn a_database_at_a_path_is_opened_when_it_is_asked_for_something() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let file = DatabaseAt::new(&path);
    let missing = file.size().unwrap_err().to_string();
    assert!(missing.contains("app.db"), "{missing}");
    std::fs::write(&path, page(9)).unwrap();
    let mut buf = [0; 600];
    assert_eq!((file.size().unwrap(), file.read(&mut buf, 0).unwrap()), (512, 512));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.size().unwrap(), 512, "it stays open");
    assert!(file.write(&[1], 0).is_err(), "it is open for reading");
}

#[test]
fn what_lies_past_the_end_is_not_counted() {
    let file = Recorded::default();
    let homed = Homed::new(&file, Some(Arc::new(Xor)));
    let mut buf = [0; 512];
    assert_eq!(homed.read(&mut buf, 0).unwrap(), 0);
    file.write(&page(6)[..60], 0).unwrap();
    assert_eq!(homed.read(&mut buf, 0).unwrap(), 60);
    homed.write(&page(6)[..200], 0).unwrap();
    assert_eq!(homed.read(&mut buf, 0).unwrap(), 200);
    assert_eq!(homed.read(&mut buf, 150).unwrap(), 50);
    assert_eq!(homed.read(&mut buf, 200).unwrap(), 0);
}

#[test]
fn draining_leaves_the_database_in_the_file() {
    let file = Recorded::default();
    let homed = Homed::new(&file, Some(Arc::new(Xor)));
    homed.write(&page(7), 0).unwrap();
    assert_ne!(file.bytes(), page(7));
    homed.drain().unwrap();
    assert_eq!(file.bytes(), page(7));
    assert_eq!(file.calls().last().unwrap(), "sync");
}

#[test]
fn the_files_errors_pass_the_home_as_they_are() {
    const CODE: i32 = 10 | 13 << 8;
    let file = Recorded { refuses: Some(CODE), ..Recorded::default() };
    let check = |result: Result<(), LogError>| match result {
        Err(LogError::BaseVfs { code, .. }) => assert_eq!(code, CODE),
        other => panic!("{other:?}"),
    };
    for home in [None, Some(Arc::new(Xor) as Arc<dyn Home>)] {
        let homed = Homed::new(&file, home);
        check(homed.read(&mut [0; 200], 0).map(drop));
        check(homed.read(&mut [0; 200], 512).map(drop));
        check(homed.write(&[0; 200], 0));
        check(homed.write(&[0; 200], 512));
        check(homed.sync());
        check(homed.size().map(drop));
        check(homed.truncate(0));
    }
}

#[test]
fn a_file_outside_sqlite_names_its_path_in_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    std::fs::write(&path, page(8)).unwrap();
    let file = OpenDatabase::new(File::open(&path).unwrap(), &path);
    let mut buf = [0; 600];
    assert_eq!(file.read(&mut buf, 0).unwrap(), 512);
    assert_eq!(file.size().unwrap(), 512);
    let refused = file.write(&[1], 0).unwrap_err().to_string();
    assert!(refused.contains("app.db"), "{refused}");
}
