//! Reads pages of b-trees to find out to which table or index a page belongs (sqlite.org/fileformat2.html,
//! sections 1.6, 2.1 and 2.6). Every byte of such a page may be damaged, so this module skips content that
//! makes no sense.

/// A page of a b-tree.
pub struct BTreePage<'a> {
    bytes: &'a [u8],
    /// The offset in the page at which the page's header begins. On page 1 the header of the database comes
    /// first.
    header: usize,
    kind: Kind,
    /// The number of bytes of the page that SQLite uses.
    usable: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    InteriorOfIndex,
    InteriorOfTable,
    LeafOfIndex,
    LeafOfTable,
}

/// The payload of a cell, or the beginning of that payload.
pub struct Payload<'a> {
    pub local: &'a [u8],
    /// The first page with the rest of the payload, and the number of pages that hold the rest.
    pub overflow: Option<(u32, u64)>,
}

impl<'a> BTreePage<'a> {
    /// Reads the page with this number. SQLite does not use the last `reserved` bytes of the page. Returns
    /// `None` if the page is not part of a b-tree.
    pub fn new(number: u32, bytes: &'a [u8], reserved: usize) -> Option<Self> {
        let header = if number == 1 { 100 } else { 0 };
        let kind = match bytes.get(header)? {
            2 => Kind::InteriorOfIndex,
            5 => Kind::InteriorOfTable,
            10 => Kind::LeafOfIndex,
            13 => Kind::LeafOfTable,
            _ => return None,
        };
        let usable = bytes.len().checked_sub(reserved).filter(|usable| *usable >= 480)?;
        Some(Self { bytes, header, kind, usable })
    }

    pub fn is_leaf(&self) -> bool {
        matches!(self.kind, Kind::LeafOfIndex | Kind::LeafOfTable)
    }

    /// Returns, for each cell, the bytes of the page from the cell's beginning on.
    fn cells(&self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, header) = (self.bytes, self.header);
        let pointers = header + if self.is_leaf() { 8 } else { 12 };
        let cells = short(bytes, header + 3).unwrap_or(0);
        // Each cell takes a pointer and some bytes. Even if the count is damaged, the loop ends at the end of
        // the page.
        (0..cells)
            .map_while(move |cell| short(bytes, pointers + 2 * cell))
            .filter_map(move |at| bytes.get(at..))
    }

    /// Returns the children of this page, from left to right. A leaf has none.
    pub fn children(&self) -> Vec<u32> {
        if self.is_leaf() {
            return Vec::new();
        }
        let last = number(self.bytes, self.header + 8);
        self.cells().filter_map(|cell| number(cell, 0)).chain(last).filter(|page| *page != 0).collect()
    }

    /// Returns the payloads of the cells.
    pub fn payloads(&self) -> impl Iterator<Item = Payload<'a>> {
        let (kind, usable) = (self.kind, self.usable);
        self.cells().filter_map(move |cell| {
            let (before, is_table) = match kind {
                Kind::InteriorOfTable => return None,
                Kind::InteriorOfIndex => (4, false),
                Kind::LeafOfIndex => (0, false),
                Kind::LeafOfTable => (0, true),
            };
            let cell = cell.get(before..)?;
            let (bytes, mut at) = varint(cell)?;
            if is_table {
                at += varint(cell.get(at..)?)?.1;
            }
            payload(cell.get(at..)?, bytes, usable, is_table)
        })
    }
}

/// Returns the payload at the beginning of `cell`. The whole payload has `bytes` bytes.
fn payload(cell: &[u8], bytes: u64, usable: usize, is_table: bool) -> Option<Payload<'_>> {
    let most = if is_table { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
    let Some(total) = usize::try_from(bytes).ok().filter(|total| *total > most) else {
        return Some(Payload { local: cell.get(..usize::try_from(bytes).ok()?)?, overflow: None });
    };
    let least = (usable - 12) * 32 / 255 - 23;
    let kept = least + (total - least) % (usable - 4);
    let kept = if kept <= most { kept } else { least };
    let pages = (total - kept).div_ceil(usable - 4);
    let overflow = (number(cell, kept)?, pages as u64);
    Some(Payload { local: cell.get(..kept)?, overflow: Some(overflow) })
}

/// The encoding of a database's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Utf8,
    Utf16Le,
    Utf16Be,
}

impl Encoding {
    /// Returns the encoding that page 1 names.
    pub fn of(first: &[u8]) -> Self {
        match number(first, 56) {
            Some(2) => Self::Utf16Le,
            Some(3) => Self::Utf16Be,
            _ => Self::Utf8,
        }
    }

    fn text(self, bytes: &[u8]) -> String {
        let wide = |of: fn([u8; 2]) -> u16| {
            let words: Vec<u16> = bytes.as_chunks().0.iter().map(|word| of(*word)).collect();
            String::from_utf16_lossy(&words)
        };
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Self::Utf16Le => wide(u16::from_le_bytes),
            Self::Utf16Be => wide(u16::from_be_bytes),
        }
    }
}

/// A row of `sqlite_schema` for a table or an index that has a b-tree.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub is_index: bool,
    pub name: String,
    /// The table to which an index belongs. For a table this is its own name.
    pub table: String,
    pub root: u32,
}

/// Returns the row of `sqlite_schema` whose record begins with these bytes, or `None` if the row has no
/// b-tree, or if the bytes are too few to tell.
pub fn entry(record: &[u8], encoding: Encoding) -> Option<Entry> {
    let (header, mut at) = varint(record)?;
    let mut body = usize::try_from(header).ok()?;
    let mut next = || {
        let (kind, bytes) = varint(record.get(at..)?)?;
        at += bytes;
        let length = match kind {
            0..=4 => usize::try_from(kind).ok()?,
            5 => 6,
            6 | 7 => 8,
            8..=11 => 0,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        let value = record.get(body..body.checked_add(length)?)?;
        body += length;
        Some((kind, value))
    };
    let kind = encoding.text(next()?.1);
    let (name, table) = (encoding.text(next()?.1), encoding.text(next()?.1));
    let (serial, root) = next()?;
    let root = match serial {
        1..=6 => root.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)),
        9 => 1,
        _ => 0,
    };
    let root = u32::try_from(root).ok().filter(|root| *root != 0)?;
    Some(Entry { is_index: kind == "index", name, table, root })
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..at + 2)?.try_into().ok().map(|bytes| usize::from(u16::from_be_bytes(bytes)))
}

/// Returns the number that is in the four bytes from `at` on.
pub fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_be_bytes)
}

/// Returns the variable-length integer (SQLite's varint) at the beginning of these bytes, and how many bytes
/// it takes.
pub fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(9).enumerate() {
        if at == 8 {
            return Some((value << 8 | u64::from(*byte), 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Appends a variable-length integer, in as few bytes as SQLite uses for it.
pub fn put_varint(bytes: &mut Vec<u8>, value: u64) {
    // Eight groups of 7 bits hold 56 bits. A larger value takes nine bytes, of which the last has 8 bits.
    let is_large = value >> 56 != 0;
    let rest = if is_large { value >> 8 } else { value };
    let groups = if is_large { 8 } else { (64 - rest.leading_zeros()).div_ceil(7).max(1) };
    bytes.extend((1..groups).rev().map(|group| (rest >> (7 * group)) as u8 | 0x80));
    bytes.push(rest as u8 & 0x7f | if is_large { 0x80 } else { 0 });
    if is_large {
        bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_is_read_as_it_was_put() {
        let edges = (0..64).flat_map(|bits| [(1_u64 << bits) - 1, 1 << bits, (1 << bits) + 1]);
        for value in edges.chain([u64::MAX, u64::MAX - 1]) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(varint(&bytes), Some((value, bytes.len())), "{value:x}");
            let groups = (64 - value.leading_zeros() as usize).div_ceil(7).max(1);
            assert_eq!(bytes.len(), groups.min(9), "{value:x}");
        }
    }

    /// Returns a record of four texts, with a number of one byte before the last text.
    fn record(texts: [&[u8]; 4], root: u8) -> Vec<u8> {
        let [kind, name, table, sql] = texts;
        let text = |text: &[u8]| (text.len() * 2 + 13) as u8;
        let mut record = vec![6, text(kind), text(name), text(table), 1, text(sql)];
        [kind, name, table, &[root], sql].iter().for_each(|part| record.extend_from_slice(part));
        record
    }

    #[test]
    fn rows_of_the_schema_are_read_as_far_as_they_are_there() {
        let row = record([b"index", b"i", b"t", b"CREATE INDEX"], 9);
        let wanted = Entry { is_index: true, name: "i".to_owned(), table: "t".to_owned(), root: 9 };
        assert_eq!(entry(&row, Encoding::Utf8).as_ref(), Some(&wanted));
        let without_sql = row.len() - 12;
        assert_eq!(entry(&row[..without_sql], Encoding::Utf8), Some(wanted));
        for end in 0..without_sql {
            assert_eq!(entry(&row[..end], Encoding::Utf8), None, "{end}");
        }
        let view = record([b"view", b"v", b"v", b"x"], 0);
        assert_eq!(entry(&view, Encoding::Utf8), None, "a view has no b-tree");
        let wide = |of: fn(u16) -> [u8; 2], text: &str| text.encode_utf16().flat_map(of).collect::<Vec<u8>>();
        for (encoding, of) in [
            (Encoding::Utf16Le, u16::to_le_bytes as fn(u16) -> [u8; 2]),
            (Encoding::Utf16Be, u16::to_be_bytes),
        ] {
            let (kind, name) = (wide(of, "table"), wide(of, "é"));
            let found = entry(&record([&kind, &name, &name, b""], 3), encoding).unwrap();
            assert_eq!((found.is_index, found.name.as_str(), found.root), (false, "é", 3));
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        for round in 0..2000 {
            let mut page: Vec<u8> = (0..512).map(|_| random()).collect();
            page[if round % 2 == 0 { 0 } else { 100 }] = [2, 5, 10, 13][round / 2 % 4];
            for reserved in [0, 32, 511] {
                let Some(page) = BTreePage::new(1 + (round as u32 + 1) % 2, &page, reserved) else {
                    continue;
                };
                page.children();
                for payload in page.payloads() {
                    entry(payload.local, Encoding::Utf8);
                }
            }
            entry(&page, Encoding::Utf16Le);
        }
        for kind in [2_u8, 5, 10, 13] {
            let mut page = vec![0xff; 512];
            page[0] = kind;
            let page = BTreePage::new(2, &page, 0).unwrap();
            assert_eq!((page.is_leaf(), page.payloads().count()), (kind >= 10, 0));
        }
        assert!(BTreePage::new(2, &[5], 0).is_none());
        assert!(BTreePage::new(2, &[], 0).is_none());
    }

    #[test]
    fn what_does_not_fit_goes_to_other_pages() {
        let cell = [7; 512];
        // In pages of 512 bytes, a leaf of a table keeps at most 477 bytes of a payload, and at least 39.
        let all = payload(&cell, 477, 512, true).unwrap();
        assert_eq!((all.local.len(), all.overflow), (477, None));
        let more = payload(&cell, 478, 512, true).unwrap();
        assert_eq!((more.local.len(), more.overflow), (39, Some((0x0707_0707, 1))));
        let more = payload(&cell, 39 + 508 + 400, 512, true).unwrap();
        assert_eq!((more.local.len(), more.overflow.map(|(_, pages)| pages)), (439, Some(1)));
        let index = payload(&cell, 103, 512, false).unwrap();
        assert_eq!((index.local.len(), index.overflow), (39, Some((0x0707_0707, 1))));
        let long = payload(&cell, 39 + 3 * 508, 512, true).unwrap();
        assert_eq!(long.overflow.map(|(_, pages)| pages), Some(3));
    }
}
