//! Finds the call site of a call for durability, such as a flush, a fence or a sync.

use std::collections::HashMap;

use crate::event::SiteId;

/// A site keeps this many stack frames above the call. Two are enough to tell the callers of a helper apart.
const DEPTH: usize = 2;

/// Call sites, numbered in the order in which they are first seen.
#[derive(Default)]
pub struct Sites {
    by_addresses: HashMap<Vec<usize>, SiteId>,
    names: Vec<String>,
    by_name: HashMap<String, SiteId>,
}

impl Sites {
    /// Returns the site of the call that is being recorded.
    pub fn here(&mut self) -> SiteId {
        let mut addresses = Vec::with_capacity(24);
        backtrace::trace(|frame| {
            addresses.push(frame.ip().addr());
            addresses.len() < 24
        });
        if let Some(site) = self.by_addresses.get(&addresses) {
            return *site;
        }
        let name = describe(&addresses);
        let next = SiteId(self.names.len() as u32);
        let site = *self.by_name.entry(name.clone()).or_insert(next);
        if site == next {
            self.names.push(name);
        }
        self.by_addresses.insert(addresses, site);
        site
    }

    /// Returns the names of the sites.
    pub fn resolve(&mut self) -> Vec<String> {
        self.names.clone()
    }
}

/// Returns the function and line of the first frames inside the engines or the VFS, innermost first. If
/// SQLite itself makes the call, the name is SQLite.
fn describe(addresses: &[usize]) -> String {
    let mut found = Vec::new();
    for address in addresses {
        // A return address may belong to the line after the call, so look up the byte before it.
        let before = address.wrapping_sub(1);
        backtrace::resolve(std::ptr::without_provenance_mut(before), |symbol| {
            let Some(path) = symbol.filename() else { return };
            let path = path.to_string_lossy();
            let Some((_, path)) = path.rsplit_once("crates/") else { return };
            let ours = ["wal/src/", "sqlite-vfs/src/"].iter().any(|start| path.starts_with(start));
            // Functions in these files only pass calls on, so the site begins with the frames above these
            // functions.
            let passes_on =
                ["base.rs", "db_file.rs", "hooks.rs", "/vfs.rs"].iter().any(|end| path.ends_with(end));
            if ours && !passes_on {
                let name = symbol.name().map(|name| short(&format!("{name:#}"))).unwrap_or_default();
                // An inlined closure has no name.
                let file = || path.rsplit_once('/').map_or(path, |(_, file)| file).to_owned();
                let name = if name.is_empty() { file() } else { name };
                found.push(format!("{name}:{}", symbol.lineno().unwrap_or(0)));
            }
        });
        if found.len() >= DEPTH {
            break;
        }
    }
    found.truncate(DEPTH);
    if found.is_empty() { "SQLite".to_owned() } else { found.join(" < ") }
}

/// Returns the last two parts of a function's name, without anything in angle brackets.
fn short(name: &str) -> String {
    let mut depth = 0_i32;
    let plain: String = name
        .chars()
        .filter(|letter| {
            depth += i32::from(*letter == '<') - i32::from(*letter == '>');
            depth == 0 && *letter != '>'
        })
        .collect();
    let parts: Vec<_> = plain.split("::").filter(|part| !part.is_empty() && !part.starts_with('{')).collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn names_are_shortened() {
        assert_eq!(short("duralite_wal::shared::heap::Heap::allocate"), "Heap::allocate");
        assert_eq!(short("<duralite_wal::engines::nvwal::Nvwal>::seal_staged"), "seal_staged");
        assert_eq!(short("a::b::c::{{closure}}"), "b::c");
    }
}
