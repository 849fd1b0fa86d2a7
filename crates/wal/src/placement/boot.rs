//! Identifies the current start of the operating system. A segment from an earlier start is only what a power loss
//! left.

use std::sync::OnceLock;

/// The kernel's file with an id that is new after each start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A number that is new after each start of the system; 0 where the system does not report one.
pub(super) fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| std::fs::read_to_string(BOOT_ID).map_or(0, |id| number(&id)))
}

/// The first 64 of the id's 128 bits. They include the UUID's version, which is not random; that does no harm.
fn number(id: &str) -> u64 {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_number_and_none_is_none() {
        assert_eq!(number("0123abcd-4567-489a-bcde-f00000000000\n"), 0x0123_abcd_4567_489a);
        assert_eq!(number(""), 0);
        assert_eq!(boot(), boot());
    }
}
