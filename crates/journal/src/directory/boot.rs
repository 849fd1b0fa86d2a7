//! Which start of the operating system this is: memory shared by a file is of the same one, or is only what a power loss left.

use std::sync::OnceLock;

/// Where the kernel says it, anew after each start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A number that is another one after each start of the system; 0 where the system does not tell.
pub(super) fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| std::fs::read_to_string(BOOT_ID).map_or(0, |id| number(&id)))
}

/// The first 64 bits of a random 128: the version of the UUID, which is no random bits, is among them, and does no harm.
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
