//! Repeats a request after a temporary failure, with a pause before each attempt. Reports a permanent failure at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::ArchiveError;

/// Decides how long to pause before a request is repeated, and when to give up.
pub trait Pauses: fmt::Debug + Send + Sync {
    /// Pauses after a request has failed. `attempts` is the number of attempts so far, and `reason` is the last error.
    /// Returns whether to try again.
    fn pause<'a>(&'a self, attempts: u32, reason: &'a ArchiveError) -> BoxFuture<'a, bool>;
}

/// Pauses of random length. The longest possible pause doubles after each attempt. So if many programs fail together,
/// they do not all come back at the same moment.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The limit of the first pause.
    pub first: Duration,
    /// The limit of every pause.
    pub longest: Duration,
    /// The number of attempts after which the request fails.
    pub attempts: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), longest: Duration::from_secs(5), attempts: 12 }
    }
}

impl Backoff {
    /// Returns the limit of the pause after `attempts` attempts.
    fn limit(&self, attempts: u32) -> Duration {
        let doubled =
            self.first.saturating_mul(1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.longest)
    }
}

impl Pauses for Backoff {
    fn pause<'a>(&'a self, attempts: u32, _reason: &'a ArchiveError) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            if attempts >= self.attempts {
                return false;
            }
            // If the system cannot supply random numbers, the pause has its full length.
            let share = getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX));
            tokio::time::sleep(self.limit(attempts).mul_f64(share)).await;
            true
        })
    }
}

/// How to repeat requests to the archive after a failure.
#[derive(Debug, Clone)]
pub struct Retry(Arc<dyn Pauses>);

impl Default for Retry {
    fn default() -> Self {
        Self::new(Backoff::default())
    }
}

impl Retry {
    /// Makes a policy that waits as `pauses` says before it repeats a request.
    pub fn new(pauses: impl Pauses + 'static) -> Self {
        Self(Arc::new(pauses))
    }

    /// Repeats a request until it succeeds, until it fails permanently, or until `pauses` says to stop.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, ArchiveError>>>(
        &self,
        mut request: impl FnMut() -> F,
    ) -> Result<T, ArchiveError> {
        let mut attempts = 0;
        loop {
            match request().await {
                Err(error) if error.is_temporary() => {
                    attempts += 1;
                    if !self.0.pause(attempts, &error).await {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::default();
        let limits: Vec<u128> = [1, 2, 3, 7, 8, 40, u32::MAX].map(|n| backoff.limit(n).as_millis()).to_vec();
        assert_eq!(limits, [50, 100, 200, 3200, 5000, 5000, 5000]);
    }
}
