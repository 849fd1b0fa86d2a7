//! The measurements. Each makes one or more tables.

pub(crate) mod breakdown;
pub(crate) mod cores;
pub(crate) mod limits;
pub(crate) mod long_scan;
pub(crate) mod peers;
pub(crate) mod plan;
pub(crate) mod schemes;
pub(crate) mod traffic;
