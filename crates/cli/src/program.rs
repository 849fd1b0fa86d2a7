//! Checks that a library can be preloaded into a program. If it cannot, the program would silently run plain SQLite.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// How many interpreters in a row the check follows. The interpreter of a script may be a script itself.
const DEPTH: u32 = 4;
/// The program header that names the dynamic linker.
const PT_INTERP: u32 = 3;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// The program does not exist. A shell exits with status 127 then.
#[derive(Debug, thiserror::Error)]
#[error("{}: no such program", .0.display())]
pub(crate) struct Missing(OsString);

/// Finds a program by its path, or by its name on `PATH`.
///
/// # Errors
/// [`Missing`].
pub(crate) fn find(name: &OsStr) -> Result<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let found = if name.as_bytes().contains(&b'/') {
        Some(PathBuf::from(name)).filter(is_program)
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|dir| dir.join(name)).find(is_program)
    };
    found.ok_or_else(|| Missing(name.to_owned()).into())
}

/// Refuses a program if the dynamic linker would not preload a library into it.
///
/// # Errors
/// The program is statically linked, is built for another architecture or another C library, or runs with another
/// user's rights.
pub(crate) fn check(path: &Path) -> Result<()> {
    check_to(path, DEPTH)
}

fn check_to(path: &Path, depth: u32) -> Result<()> {
    let Ok(mut file) = File::open(path) else { return Ok(()) }; // a user may be allowed to run a program, and not to read it
    check_rights(path, &file)?;
    let mut head = [0; 256];
    let read = file.read(&mut head)?;
    let head = &head[..read];
    if let Some(line) = head.strip_prefix(b"#!") {
        return match interpreter(line) {
            Some(interpreter) if depth > 0 => check_to(&find(&interpreter)?, depth - 1),
            _ => Ok(()),
        };
    }
    let Some(program) = Elf::read(head) else { return Ok(()) }; // no program: the system reports that when it is started
    let own = File::open("/proc/self/exe").and_then(|mut own| {
        let mut head = [0; 64];
        own.read_exact(&mut head).map(|()| head)
    })?;
    if Elf::read(&own).is_some_and(|own| (own.class, own.machine) != (program.class, program.machine)) {
        bail!("{} is for another processor than Duralite's libraries", path.display());
    }
    match program.linker(&file)? {
        None => bail!(
            "{} is statically linked: Duralite cannot be preloaded, and its databases would be plain SQLite",
            path.display()
        ),
        Some(linker) if linker.as_bytes().windows(7).any(|word| word == b"ld-musl") => {
            bail!("{} is for the C library musl, and Duralite's libraries for glibc", path.display())
        }
        Some(_) => Ok(()),
    }
}

/// Refuses a program that has more rights than the user who starts it, because the dynamic linker preloads nothing into
/// such a program.
fn check_rights(path: &Path, file: &File) -> Result<()> {
    let meta = file.metadata()?;
    let process = fs::metadata("/proc/self")?;
    let gets_user = meta.mode() & SETUID != 0 && meta.uid() != process.uid();
    let gets_group = meta.mode() & SETGID != 0 && meta.gid() != process.gid();
    let mut value = [0; 64];
    let gets_capabilities =
        process.uid() != 0 && rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok();
    if gets_user || gets_group || gets_capabilities {
        bail!(
            "{} runs with another user's rights (setuid, setgid or capabilities): Duralite cannot be \
             preloaded, and its databases would be plain SQLite",
            path.display()
        );
    }
    Ok(())
}

/// Returns the interpreter that a script's first line names. If the line calls `env`, the interpreter is the first word
/// after `env` that is neither an option nor a variable.
fn interpreter(line: &[u8]) -> Option<OsString> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let first = words.next()?;
    let named = if first.ends_with(b"/env") {
        words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?
    } else {
        first
    };
    Some(OsString::from_vec(named.to_vec()))
}

/// The parts of an ELF file's header that the check needs.
struct Elf {
    class: u8,
    machine: u16,
    /// The program headers: the offset of the first one, the size of each, and their number.
    headers: (u64, u64, u64),
}

impl Elf {
    /// Reads the header of a file. Returns `None` if the file is not ELF, or not little-endian.
    fn read(head: &[u8]) -> Option<Self> {
        if head.get(..4)? != b"\x7fELF" || head.get(5) != Some(&1) {
            return None;
        }
        let class = *head.get(4)?;
        let headers = if class == 2 {
            (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?)
        } else {
            (number(head, 28, 4)?, number(head, 42, 2)?, number(head, 44, 2)?)
        };
        Some(Self { class, machine: number(head, 18, 2)? as u16, headers })
    }

    /// Returns the dynamic linker that the program names; `None` for a static program.
    fn linker(&self, file: &File) -> Result<Option<OsString>> {
        let (at, size, count) = self.headers;
        // The offsets of these fields depend on the ELF class (32 or 64 bits). The caller has checked that the program
        // has the same class as this command.
        for nth in 0..count {
            let mut header = [0; 56];
            file.read_exact_at(&mut header, at + nth * size)?;
            if number(&header, 0, 4) == Some(u64::from(PT_INTERP)) {
                let mut name = [0; 256];
                let read = file.read_at(&mut name, number(&header, 8, 8).unwrap_or_default())?;
                let end = name[..read].iter().position(|byte| *byte == 0).unwrap_or(read);
                return Ok(Some(OsString::from_vec(name[..end].to_vec())));
            }
        }
        Ok(None)
    }
}

/// Reads a little-endian number from a header.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_interpreter_is_found_behind_env() {
        let of = |line: &str| interpreter(line.as_bytes()).map(|name| name.into_string().unwrap());
        assert_eq!(of(" /bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(of("/usr/bin/env -S A=1 python3 -B\n"), Some("python3".into()));
        assert_eq!(of("\n"), None);
    }

    #[test]
    fn this_very_program_can_be_preloaded_into() {
        let own = env::current_exe().unwrap();
        check(&own).unwrap();
        let mut bytes = fs::read(&own).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        bytes[18] ^= 0xff;
        fs::write(&other, &bytes[..4096]).unwrap();
        let refused = check(&other).unwrap_err().to_string();
        assert!(refused.contains("another processor"), "{refused}");
    }
}
