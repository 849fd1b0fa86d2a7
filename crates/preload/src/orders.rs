//! What `duralite run` asks for: words in the environment variable `DURALITE_RUN`, which the program's
//! children inherit.

use std::sync::LazyLock;

/// The environment variable. Its words are `wal`, `quiet`, and `pid=` with the id of the process that
/// `duralite run` has started.
const VARIABLE: &str = "DURALITE_RUN";

/// The orders for a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Whether `duralite run` has started this process, or an ancestor of it.
    pub are_given: bool,
    /// Whether to put databases into WAL mode when they are opened.
    pub wal: bool,
    /// Whether to leave out the report at the end.
    pub quiet: bool,
    /// The id of the process that `duralite run` has started. The children of that process see the same id.
    pub pid: Option<u32>,
}

impl Orders {
    fn read(text: &str) -> Self {
        let mut orders = Self { are_given: !text.is_empty(), ..Self::default() };
        for word in text.split(',') {
            match word {
                "wal" => orders.wal = true,
                "quiet" => orders.quiet = true,
                _ => orders.pid = word.strip_prefix("pid=").and_then(|pid| pid.parse().ok()).or(orders.pid),
            }
        }
        orders
    }
}

/// Returns the orders for this process.
pub fn orders() -> &'static Orders {
    static ORDERS: LazyLock<Orders> =
        LazyLock::new(|| Orders::read(&std::env::var(VARIABLE).unwrap_or_default()));
    &ORDERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart_and_none_are_no_orders() {
        assert_eq!(Orders::read(""), Orders::default());
        let all = Orders { are_given: true, wal: true, quiet: true, pid: Some(12) };
        assert_eq!(Orders::read("pid=12,wal,quiet"), all);
        assert_eq!(Orders::read("pid=12"), Orders { wal: false, quiet: false, ..all });
    }
}
