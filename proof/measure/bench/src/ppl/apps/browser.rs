//! The web browser: the addresses, titles and thumbnails of visited pages, and their cookies.

use crate::ppl::app::{App, Order, fill, join, select, update};
use crate::ppl::model::Model;
use crate::ppl::paper::BROWSER;
use rusqlite::types::Value;

const SITES: u64 = 60;

const SCHEMA: &str = "
CREATE TABLE bookmarks(_id INTEGER PRIMARY KEY, title TEXT, url TEXT, folder INTEGER, parent INTEGER, position INTEGER,
    deleted INTEGER, created INTEGER, modified INTEGER);
CREATE TABLE history(_id INTEGER PRIMARY KEY, title TEXT, url TEXT NOT NULL, created INTEGER, date INTEGER,
    visits INTEGER, user_entered INTEGER);
CREATE INDEX history_url ON history(url);
CREATE INDEX history_date ON history(date);
CREATE TABLE images(url_key TEXT PRIMARY KEY, favicon BLOB, thumbnail BLOB, touch_icon BLOB);
CREATE TABLE cookies(_id INTEGER PRIMARY KEY, host TEXT, name TEXT, value TEXT, path TEXT, expires INTEGER,
    last_access INTEGER, secure INTEGER);
CREATE INDEX cookies_host ON cookies(host);
CREATE TABLE searches(_id INTEGER PRIMARY KEY, search TEXT, date INTEGER);
CREATE TABLE settings(key TEXT PRIMARY KEY, value TEXT);
";

const INSERT_HISTORY: &str = "INSERT INTO history VALUES(?1, ?2, ?3, ?4, ?5, 1, 0)";
const INSERT_IMAGE: &str = "INSERT OR REPLACE INTO images VALUES(?1, ?2, ?3, NULL)";
const INSERT_COOKIE: &str = "INSERT INTO cookies VALUES(?1, ?2, ?3, ?4, '/', ?5, ?6, 0)";

pub(super) static APP: App = App {
    paper: &BROWSER,
    schema: SCHEMA,
    fill: &[
        fill(1400, INSERT_HISTORY, visit),
        fill(260, INSERT_IMAGE, |model| {
            let (site, page) = (model.subject(SITES), model.append("images"));
            vec![model.url(&site, &page), model.blob(300..900), model.blob(3000..7000)]
        }),
        fill(1200, INSERT_COOKIE, cookie),
        fill(40, "INSERT INTO bookmarks VALUES(?1, ?2, ?3, 0, 1, ?4, 0, ?5, ?5)", |model| {
            let id = model.append("bookmarks");
            let (site, page) = (model.subject(SITES), model.number(1000));
            vec![id, model.text(10..40), model.url(&site, &page), model.number(40), model.now()]
        }),
    ],
    reads_alone: 0,
    order: Order::Mixed,
    kinds: &[
        update((20, 20), INSERT_HISTORY, visit),
        update((26, 26), "UPDATE history SET visits=visits+1, date=?2 WHERE _id=?1", |model| {
            vec![model.recent("history", 12), model.now()]
        }),
        update((8, 8), "UPDATE history SET title=?2 WHERE _id=?1", |model| {
            vec![model.newest("history"), model.text(20..70)]
        }),
        update((20, 20), INSERT_COOKIE, cookie),
        update((13, 13), "DELETE FROM cookies WHERE _id=?1", |model| vec![model.remove_oldest("cookies")]),
        update((10, 10), "UPDATE cookies SET value=?2, last_access=?3 WHERE _id=?1", |model| {
            vec![model.recent("cookies", 20), model.text(20..80), model.now()]
        }),
        update((2, 2), INSERT_IMAGE, image),
        select(5, "SELECT _id, visits FROM history WHERE _id=?1", |model| vec![model.recent("history", 12)]),
        select(4, "SELECT name, value, path FROM cookies WHERE host=?1", |model| vec![host(model)]),
        select(1, "SELECT title, url FROM bookmarks WHERE deleted=0 ORDER BY position", |_| vec![]),
        join(
            4,
            "SELECT h.title, h.url, i.favicon FROM history h LEFT JOIN images i ON i.url_key=h.url WHERE h._id=?1",
            |model| vec![model.recent("history", 12)],
        ),
        join(
            1,
            "SELECT b.title, b.url, i.thumbnail FROM bookmarks b LEFT JOIN images i ON i.url_key=b.url WHERE b._id=?1",
            |model| vec![model.any("bookmarks")],
        ),
    ],
};

fn host(model: &mut Model) -> Value {
    match model.subject(SITES) {
        Value::Integer(site) => Value::Text(format!(".site{site:03}.com")),
        other => other,
    }
}

fn visit(model: &mut Model) -> Vec<Value> {
    let id = model.append("history");
    let url = {
        let site = model.subject(SITES);
        model.url(&site, &id)
    };
    let (title, now) = (model.text(20..70), model.now());
    vec![id, title, url, now.clone(), now]
}

/// Draws the values of an image of a page that was visited recently.
fn image(model: &mut Model) -> Vec<Value> {
    let (site, page) = (model.subject(SITES), model.recent("history", 12));
    vec![model.url(&site, &page), model.blob(300..900), model.blob(2500..5000)]
}

fn cookie(model: &mut Model) -> Vec<Value> {
    let id = model.append("cookies");
    vec![id, host(model), model.text(4..12), model.text(20..80), model.now(), model.now()]
}
