//! Settings that several engines share, and values that the rows of other settings have in common.

use super::{EngineSetting, OnClose, Values, name_of, on_off};

/// Bytes of page images that an engine keeps in memory by default.
pub const CACHE_BYTES: usize = 8 << 20;

/// The valid values of a size.
pub const BYTES: Values = Values::Fixed("a number of bytes, with k, m or g behind it if you like");
/// The valid values of a switch.
pub const SWITCH: Values = Values::Fixed("on or off");

/// Most bytes a log may take.
pub static LOG_LIMIT: EngineSetting = EngineSetting::new(
    "log_limit",
    BYTES,
    |all, given| given.size().map(|value| all.limit_bytes = Some(value)),
    |all| all.limit_bytes.unwrap_or_default().to_string(),
);

/// Bytes of page images kept in memory.
pub static CACHE: EngineSetting = EngineSetting::new(
    "cache_bytes",
    BYTES,
    |all, given| given.size().map(|value| all.cache_bytes = Some(value)),
    |all| all.cache_bytes.unwrap_or(CACHE_BYTES).to_string(),
);

/// Whether the engine logs differences, or whole pages.
pub static DIFF: EngineSetting = EngineSetting::new(
    "diff",
    SWITCH,
    |all, given| given.switch().map(|value| all.diff = Some(value)),
    |all| on_off(all.diff.unwrap_or(true)),
)
.shared();

/// What the last connection that closes does with the log.
pub static ON_CLOSE: EngineSetting = EngineSetting::new(
    "on_close",
    Values::Fixed("drain or keep"),
    |all, given| given.named(&OnClose::NAMES).map(|on_close| all.on_close = on_close),
    |all| name_of(&OnClose::NAMES, all.on_close),
)
.shared()
.changeable();
