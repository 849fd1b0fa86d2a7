//! A log of `nvwal` or `waldio` on a medium that may lose power, and the processes that use it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use duralite_crashmodel::{BlockOp, Crashes as _, RecordingBlock, RecordingNvm};
use duralite_format::waldio::Layout;
use duralite_format::{LogHead, LogId, nvwal, waldio};
use duralite_medium::block::{Block as _, Durability};
use duralite_medium::{LocalSegment, MediumError, Nvm as _, Segment};
use duralite_wal::engine::Engine;
use duralite_wal::engine::checksums::find_checksum_mismatch;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::nvwal::Nvwal;
use duralite_wal::engines::waldio::{SHARED_BYTES, Waldio};
use duralite_wal::log::stream::WalStream;
use duralite_wal::{HeapMode, LogError, NvwalOptions, SyncMode, WaldioOptions};
use libfuzzer_sys::arbitrary::{self, Unstructured};

pub type Stream = WalStream<dyn Engine>;

/// The log and its medium.
pub enum Rig {
    Nvwal {
        nvm: Arc<RecordingNvm>,
        superblock: nvwal::Superblock,
        options: NvwalOptions,
    },
    Waldio {
        block: Arc<RecordingBlock>,
        /// The memory that the living processes share.
        segment: Arc<dyn Segment>,
        superblock: waldio::Superblock,
        options: WaldioOptions,
    },
}

impl Rig {
    /// An empty log with a random configuration.
    pub fn arbitrary(input: &mut Unstructured) -> arbitrary::Result<Self> {
        let page_bytes = *input.choose(&[512, 512, 512, 1024, 4096, 65536])?;
        let (log_id, path) = (LogId([9; 16]), b"/fuzz.db".to_vec());
        let head = LogHead { page_bytes, log_id, db_inode: 1, db_birth_ns: 2, path, made_in: None };
        let limit_bytes = *input.choose(&[64 << 10, 256 << 10, 1 << 20, 64 << 20])?;
        let cache_bytes = *input.choose(&[0, 2048, 1 << 20])?;
        if input.arbitrary()? {
            let options = NvwalOptions {
                sync: *input.choose(&SyncMode::ALL)?,
                diff: input.ratio(3, 4)?,
                heap: *input.choose(&[HeapMode::User, HeapMode::System])?,
                block_bytes: *input.choose(&[8192, 0])?,
                limit_bytes,
                cache_bytes,
            };
            let (block_bytes, limit_blocks) = Nvwal::shape(&options, page_bytes);
            let superblock = nvwal::Superblock {
                head,
                block_bytes,
                limit_blocks,
                blocks_offset: nvwal::Superblock::blocks_offset_for(limit_blocks),
            };
            return Ok(Self::nvwal(superblock, options));
        }
        let options = WaldioOptions {
            layout: *input.choose(&Layout::ALL)?,
            durability: *input.choose(&[Durability::Full, Durability::Fua, Durability::Normal])?,
            group_synch: *input.choose(&[0, 0, 0, 5])?,
            // The interval is so long that nothing depends on the time.
            group_interval: Duration::from_secs(3600),
            limit_bytes,
            cache_bytes,
            ..WaldioOptions::default()
        };
        let superblock = waldio::Superblock {
            head,
            block_bytes: *input.choose(&[512, 512, 1024, 4096])?,
            layout: options.layout,
            limit_bytes,
        };
        Ok(Self::waldio(superblock, options))
    }

    fn nvwal(superblock: nvwal::Superblock, options: NvwalOptions) -> Self {
        let nvm = RecordingNvm::new(0, superblock.file_bytes(superblock.limit_blocks));
        Nvwal::format(&nvm, &superblock).expect("format");
        Self::Nvwal { nvm: Arc::new(nvm), superblock, options }
    }

    fn waldio(superblock: waldio::Superblock, options: WaldioOptions) -> Self {
        let block = RecordingBlock::new(superblock.block_bytes);
        Waldio::format(&block, &superblock).expect("format");
        Self::Waldio { block: Arc::new(block), segment: fresh(), superblock, options }
    }

    /// Another log with the same configuration. One is made when a power loss has left a provisional guard.
    pub fn anew(&self) -> Self {
        match self {
            Self::Nvwal { superblock, options, .. } => Self::nvwal(superblock.clone(), options.clone()),
            Self::Waldio { superblock, options, .. } => Self::waldio(superblock.clone(), options.clone()),
        }
    }

    /// The same log on a medium with this content.
    pub fn over(&self, image: Vec<u8>) -> Self {
        match self {
            Self::Nvwal { superblock, options, .. } => {
                let capacity = superblock.file_bytes(superblock.limit_blocks);
                let nvm = Arc::new(RecordingNvm::from_bytes(image, capacity));
                Self::Nvwal { nvm, superblock: superblock.clone(), options: options.clone() }
            }
            Self::Waldio { superblock, options, .. } => {
                let block = RecordingBlock::from_bytes(image, superblock.block_bytes);
                Self::Waldio {
                    block: Arc::new(block),
                    segment: fresh(),
                    superblock: superblock.clone(),
                    options: options.clone(),
                }
            }
        }
    }

    /// The first process, which recovers the log, and a second one, which joins it.
    pub fn processes(&self) -> Result<[Stream; 2], LogError> {
        Ok([self.attach(true)?, self.attach(false)?])
    }

    /// New processes, which begin after all old ones have died.
    pub fn revive(&mut self) -> Result<[Stream; 2], LogError> {
        if let Self::Waldio { segment, .. } = self {
            *segment = fresh();
        }
        self.processes()
    }

    /// Another process that joins.
    pub fn join(&self) -> Result<Stream, LogError> {
        self.attach(false)
    }

    fn attach(&self, first: bool) -> Result<Stream, LogError> {
        let path = Path::new("fuzz");
        let engine: Box<dyn Engine> = match self {
            Self::Nvwal { nvm, options, .. } => {
                let mut engine = Nvwal::open(nvm.clone(), path, options.clone())?;
                if first {
                    engine.recover_heap()?;
                }
                Box::new(engine)
            }
            Self::Waldio { block, segment, superblock, options } => {
                let (block, segment) = (block.clone(), segment.clone());
                Box::new(Waldio::attach(block, superblock.clone(), path, options, segment, 0, first)?)
            }
        };
        let mut stream = WalStream::over(engine);
        assert_eq!(
            find_checksum_mismatch(stream.engine_mut(), &NoDatabase)?,
            None,
            "SQLite's recovery would stop here"
        );
        Ok(stream)
    }

    pub fn page_bytes(&self) -> usize {
        match self {
            Self::Nvwal { superblock, .. } => superblock.head.page_bytes as usize,
            Self::Waldio { superblock, .. } => superblock.head.page_bytes as usize,
        }
    }

    /// The most steps of a transaction. With the largest pages, a transaction must be able to outgrow what
    /// is kept in memory.
    pub fn most_frames(&self) -> usize {
        if self.page_bytes() == 65536 { 24 } else { 8 }
    }

    /// Whether a transaction is durable as soon as it is sealed.
    pub fn sealed_is_durable(&self) -> bool {
        matches!(self, Self::Nvwal { options, .. } if options.sync != SyncMode::Async)
    }

    /// Whether a transaction is durable once a process has waited for it.
    pub fn acknowledged_is_durable(&self) -> bool {
        match self {
            Self::Nvwal { .. } => self.sealed_is_durable(),
            Self::Waldio { options, .. } => {
                options.durability != Durability::Normal && options.group_synch == 0
            }
        }
    }

    /// Whether recovery makes everything durable that it finds.
    pub fn recovery_is_durable(&self) -> bool {
        matches!(self, Self::Waldio { .. })
    }

    /// Whether a log that starts over may be empty for a moment. It may if the old generation occupies the
    /// last block.
    pub fn may_be_emptied_first(&self) -> bool {
        matches!(self, Self::Nvwal { .. })
    }

    pub fn has_crashed(&self) -> bool {
        match self {
            Self::Nvwal { nvm, .. } => nvm.has_crashed(),
            Self::Waldio { block, .. } => block.has_crashed(),
        }
    }

    /// The content that a power loss has left, or, if there was none, the content that a power loss now
    /// would leave.
    pub fn image(&self, input: &mut Unstructured) -> arbitrary::Result<Vec<u8>> {
        let seed = input.arbitrary::<u32>()?.into();
        Ok(match self {
            Self::Nvwal { nvm, .. } => nvm.image().unwrap_or_else(|| nvm.crash(seed).to_bytes()),
            Self::Waldio { block, .. } => block.image().unwrap_or_else(|| block.crash_at_random(seed)),
        })
    }

    /// Loses power after this many operations.
    pub fn crash_after(&self, operations: u64, seed: u32) {
        match self {
            Self::Nvwal { nvm, .. } => nvm.crash_before(operations, seed.into()),
            Self::Waldio { block, .. } => block.crash_before(operations, seed.into()),
        }
    }

    /// Allows the medium to grow by `room` bytes, or without a limit.
    pub fn limit(&self, room: Option<u64>) {
        match self {
            Self::Nvwal { nvm, .. } => nvm.set_grow_limit(room.map(|room| nvm.len() + room)),
            Self::Waldio { block, .. } => {
                block.set_limit(room.map_or(u64::MAX, |room| block.len() + room));
            }
        }
    }

    /// Makes an operation fail, if the medium can. Returns whether it can.
    pub fn fail(&self, operation: BlockOp, before: u64, error: MediumError) -> bool {
        match self {
            Self::Nvwal { .. } => false,
            Self::Waldio { block, .. } => {
                block.fail(operation, before, error);
                true
            }
        }
    }
}

fn fresh() -> Arc<dyn Segment> {
    Arc::new(LocalSegment::new(SHARED_BYTES))
}

impl fmt::Debug for Rig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvwal { superblock, options, .. } => write!(f, "{superblock:?} {options:?}"),
            Self::Waldio { superblock, options, .. } => write!(f, "{superblock:?} {options:?}"),
        }
    }
}
