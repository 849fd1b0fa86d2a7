//! Wraps the memory of a log, so that the log's magic number reads as that of another engine.

use duralite_medium::{Counters, FileNvm, Guarantee, Latency, MediumError, Nvm};

/// The memory of a log, whose first bytes read as `magic`.
#[derive(Debug)]
pub struct Disguised {
    nvm: FileNvm,
    magic: [u8; 8],
}

impl Disguised {
    pub fn new(nvm: FileNvm, magic: [u8; 8]) -> Self {
        Self { nvm, magic }
    }
}

macro_rules! of_the_memory {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $arg: $type)*) -> $result { self.nvm.$name($($arg),*) })*
    };
}

impl Nvm for Disguised {
    fn read(&self, at: u64, buf: &mut [u8]) {
        self.nvm.read(at, buf);
        let magic = usize::try_from(at).ok().and_then(|at| self.magic.get(at..)).unwrap_or_default();
        buf.iter_mut().zip(magic).for_each(|(byte, magic)| *byte = *magic);
    }

    of_the_memory! {
        fn len(&self) -> u64;
        fn capacity(&self) -> u64;
        fn grow(&self, len: u64) -> Result<(), MediumError>;
        fn refresh_len(&self, at_least: u64) -> Result<(), MediumError>;
        fn next_data(&self, at: u64) -> u64;
        fn load_u64(&self, at: u64) -> u64;
        fn store(&self, at: u64, bytes: &[u8]) -> ();
        fn store_u64(&self, at: u64, value: u64) -> ();
        fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;
        fn shrink(&self, len: u64) -> Result<(), MediumError>;
        fn check(&self) -> Result<(), MediumError>;
        fn is_durable_on_store(&self) -> bool;
        fn stream(&self, at: u64, bytes: &[u8]) -> ();
        fn flush(&self, at: u64, len: u64) -> ();
        fn fence(&self) -> ();
        fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError>;
        fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError>;
        fn restore(&self, at: u64, len: u64) -> Result<(), MediumError>;
        fn counters(&self) -> Counters;
        fn guarantee(&self) -> Guarantee;
        fn describe(&self) -> String;
        fn set_latency(&self, latency: Latency) -> ();
        fn latency(&self) -> Latency;
    }
}
