//! An example: accounts over HTTP, kept in `duralite-store`. The service answers only when the change is durable. So a
//! kill at any moment loses nothing that was confirmed to a client. If a client gets no answer to a transfer, it can
//! repeat the transfer, which is then made only once.
//!
//! The requests are `GET /accounts?prefix=P`, `GET /accounts/NAME`, `POST /accounts/NAME?amount=N`, `POST /transfers`
//! with `{"id": .., "from": .., "to": .., "amount": ..}`, `POST /backups/NAME`, and `GET /metrics`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser;
use duralite_store::{Error, Options, Store, Table, Transaction};
use serde::{Deserialize, Serialize};

#[derive(Debug, Parser)]
struct Arguments {
    /// Directory of the store, of its archive and of its backups; made if it does not exist
    dir: PathBuf,
    /// Port on this machine; 0 for any free port, which is printed
    #[arg(long, default_value_t = 0)]
    port: u16,
}

/// The state that all requests share.
#[derive(Debug)]
struct Bank {
    store: Store,
    accounts: Table,
    transfers: Table,
    backups: PathBuf,
}

/// The reason why a request fails.
#[derive(Debug)]
enum Failure {
    Store(Error),
    NotFound,
    Refused(&'static str),
    /// The service gave the request up, and does not know whether the change was made.
    Unknown,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::NotFound => (StatusCode::NOT_FOUND, "there is no such account\n".to_owned()),
            Self::Refused(why) => (StatusCode::CONFLICT, format!("{why}\n")),
            Self::Unknown => {
                let what = "the request was given up; the change may or may not have been made\n";
                (StatusCode::INTERNAL_SERVER_ERROR, what.to_owned())
            }
            Self::Store(error) if error.is_retryable() => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
            }
            Self::Store(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
        .into_response()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Transfer {
    /// An identifier that the client chooses. A request with the same identifier is a repetition of the same transfer.
    id: String,
    from: String,
    to: String,
    amount: u64,
}

#[derive(Debug, Deserialize)]
struct Amount {
    amount: u64,
}

#[derive(Debug, Deserialize)]
struct Prefix {
    #[serde(default)]
    prefix: String,
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

/// Runs a transaction on a thread that may block. Returns its result when the transaction is durable. If the
/// transaction fails, returns the failure only when everything that the transaction has read is durable.
async fn change<T: Send + 'static>(
    bank: Arc<Bank>,
    work: impl Fn(&Bank, &mut Transaction) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let run = move || {
        let (value, ticket) = bank.store.run_async(|tx| work(&bank, tx))?;
        Ok::<_, Failure>((value, ticket))
    };
    let (value, ticket) = blocking(run).await?;
    ticket.await?;
    Ok(value)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_) => Err(Failure::Unknown),
    }
}

async fn open_account(
    State(bank): State<Arc<Bank>>,
    Path(name): Path<String>,
    Query(Amount { amount }): Query<Amount>,
) -> Result<StatusCode, Failure> {
    change(bank, move |bank, tx| match tx.insert(&bank.accounts, name.as_bytes(), &amount.to_le_bytes()) {
        Err(Error::Exists) => Err(Failure::Refused("there is such an account")),
        done => Ok(done?),
    })
    .await?;
    Ok(StatusCode::CREATED)
}

async fn account(State(bank): State<Arc<Bank>>, Path(name): Path<String>) -> Result<Json<u64>, Failure> {
    let balance = change(bank, move |bank, tx| Ok(tx.get(&bank.accounts, name.as_bytes())?)).await?;
    balance.map(|value| Json(number(&value))).ok_or(Failure::NotFound)
}

async fn list(
    State(bank): State<Arc<Bank>>,
    Query(Prefix { prefix }): Query<Prefix>,
) -> Result<Json<Vec<(String, u64)>>, Failure> {
    let rows = change(bank, move |bank, tx| {
        let rows = tx.prefix(&bank.accounts, prefix.as_bytes());
        let row = |row: Result<(Vec<u8>, Vec<u8>), Error>| {
            let (name, value) = row?;
            Ok((String::from_utf8_lossy(&name).into_owned(), number(&value)))
        };
        rows.map(row).collect()
    });
    rows.await.map(Json)
}

async fn transfer(
    State(bank): State<Arc<Bank>>,
    Json(wanted): Json<Transfer>,
) -> Result<StatusCode, Failure> {
    change(bank, move |bank, tx| {
        if tx.get_for_update(&bank.transfers, wanted.id.as_bytes())?.is_some() {
            return Ok(StatusCode::OK);
        }
        let balance = |tx: &Transaction, name: &str| {
            let value = tx.get_for_update(&bank.accounts, name.as_bytes())?;
            value.map(|value| number(&value)).ok_or(Failure::NotFound)
        };
        let left = balance(tx, &wanted.from)?.checked_sub(wanted.amount);
        let left = left.ok_or(Failure::Refused("there is not enough in the account"))?;
        tx.put(&bank.accounts, wanted.from.as_bytes(), &left.to_le_bytes())?;
        let more = balance(tx, &wanted.to)?.checked_add(wanted.amount);
        let more = more.ok_or(Failure::Refused("the account is full"))?;
        tx.put(&bank.accounts, wanted.to.as_bytes(), &more.to_le_bytes())?;
        tx.put(&bank.transfers, wanted.id.as_bytes(), &wanted.amount.to_le_bytes())?;
        Ok(StatusCode::CREATED)
    })
    .await
}

/// Makes a backup while other requests continue. The archive keeps the log from then on. With the backup and the
/// archive, the store can be restored to any later moment.
async fn backup(State(bank): State<Arc<Bank>>, Path(name): Path<String>) -> Result<String, Failure> {
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(Failure::Refused("a backup's name has letters, digits and hyphens"));
    }
    let last = blocking(move || Ok(bank.store.backup(bank.backups.join(name))?)).await?;
    Ok(format!("{last}\n"))
}

async fn metrics(State(bank): State<Arc<Bank>>) -> String {
    let metrics = bank.store.metrics();
    format!(
        "commits {}\naborts {}\ndeadlocks {}\nactive {}\ncache_hits {}\ncache_misses {}\nlog_free_bytes {}\narchived_from {}\n",
        metrics.commits,
        metrics.aborts,
        metrics.deadlocks,
        metrics.active,
        metrics.cache_hits,
        metrics.cache_misses,
        metrics.log_free_bytes,
        metrics.archived_from
    )
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { dir, port } = Arguments::parse();
    let options = Options::default().archive(dir.join("archive"));
    let store = Store::open(dir.join("store"), options).context("opening the store")?;
    let backups = dir.join("backups");
    std::fs::create_dir_all(&backups).context("making the directory of backups")?;
    let (accounts, transfers) = (store.table("accounts")?, store.table("transfers")?);
    let bank = Arc::new(Bank { store, accounts, transfers, backups });
    let router = Router::new()
        .route("/accounts", get(list))
        .route("/accounts/{name}", get(account).post(open_account))
        .route("/transfers", post(transfer))
        .route("/backups/{name}", post(backup))
        .route("/metrics", get(metrics))
        .with_state(bank);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.context("listening")?;
    println!("http://{}", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, router).with_graceful_shutdown(stop).await.context("serving")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer must not look like a refusal to the client, because the change may have been made.
    #[tokio::test]
    async fn a_request_that_was_given_up_is_not_refused() {
        let done = blocking(|| -> Result<(), Failure> { panic!("a request fails") }).await;
        let status = done.into_response().status();
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
