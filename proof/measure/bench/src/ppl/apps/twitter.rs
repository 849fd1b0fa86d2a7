//! Twitter: 21 tables and 9 indexes, short texts, nearly all of them inserted one by one.

use crate::ppl::app::{App, Order, fill, join, select, update};
use crate::ppl::model::Model;
use crate::ppl::paper::TWITTER;
use rusqlite::types::Value;

const SCHEMA: &str = "
CREATE TABLE statuses(_id INTEGER PRIMARY KEY, status_id INTEGER, author_id INTEGER, content TEXT, source TEXT,
    created INTEGER, in_r_user_id INTEGER, in_r_status_id INTEGER, favorited INTEGER, retweeted INTEGER, flags INTEGER,
    geo TEXT, entities BLOB, card BLOB);
CREATE INDEX statuses_status ON statuses(status_id);
CREATE INDEX statuses_author ON statuses(author_id);
CREATE TABLE users(_id INTEGER PRIMARY KEY, user_id INTEGER, username TEXT, name TEXT, description TEXT, web_url TEXT,
    location TEXT, image_url TEXT, followers INTEGER, friends INTEGER, statuses INTEGER, updated INTEGER);
CREATE INDEX users_user ON users(user_id);
CREATE INDEX users_username ON users(username);
CREATE TABLE timeline(_id INTEGER PRIMARY KEY, owner_id INTEGER, type INTEGER, ref_id INTEGER, author_id INTEGER,
    updated_at INTEGER, is_read INTEGER);
CREATE INDEX timeline_owner ON timeline(type, updated_at);
CREATE TABLE messages(_id INTEGER PRIMARY KEY, thread TEXT, sender_id INTEGER, recipient_id INTEGER, content TEXT,
    created INTEGER, is_read INTEGER);
CREATE INDEX messages_thread ON messages(sender_id, created);
CREATE TABLE activities(_id INTEGER PRIMARY KEY, event INTEGER, created_at INTEGER, sources BLOB, targets BLOB);
CREATE INDEX activities_created ON activities(created_at);
CREATE TABLE topics(_id INTEGER PRIMARY KEY, ev_id TEXT, title TEXT, query TEXT, seed INTEGER);
CREATE INDEX topics_ev ON topics(ev_id);
CREATE TABLE slugs(_id INTEGER PRIMARY KEY, slug TEXT, name TEXT);
CREATE INDEX slugs_slug ON slugs(slug);
CREATE TABLE lists(_id INTEGER PRIMARY KEY, name TEXT, description TEXT, creator_id INTEGER);
CREATE TABLE list_mapping(_id INTEGER PRIMARY KEY, list_id INTEGER, user_id INTEGER);
CREATE TABLE user_groups(_id INTEGER PRIMARY KEY, type INTEGER, owner_id INTEGER, user_id INTEGER, rank INTEGER);
CREATE TABLE user_metadata(_id INTEGER PRIMARY KEY, user_id INTEGER, social TEXT);
CREATE TABLE search_queries(_id INTEGER PRIMARY KEY, name TEXT, query TEXT, time INTEGER);
CREATE TABLE search_results(_id INTEGER PRIMARY KEY, search_id INTEGER, kind INTEGER, data BLOB);
CREATE TABLE stories(_id INTEGER PRIMARY KEY, story TEXT, ord INTEGER);
CREATE TABLE notifications(_id INTEGER PRIMARY KEY, type INTEGER, content BLOB);
CREATE TABLE tokens(_id INTEGER PRIMARY KEY, text TEXT, weight INTEGER);
CREATE TABLE cursors(_id INTEGER PRIMARY KEY, kind INTEGER, type INTEGER, next TEXT);
CREATE TABLE promotions(_id INTEGER PRIMARY KEY, content BLOB);
CREATE TABLE conversations(_id INTEGER PRIMARY KEY, ref_id INTEGER, participants TEXT);
CREATE TABLE one_click(_id INTEGER PRIMARY KEY, query TEXT, filter TEXT);
CREATE TABLE locations(_id INTEGER PRIMARY KEY, name TEXT, woeid INTEGER);
";

const INSERT_STATUS: &str =
    "INSERT INTO statuses VALUES(?1, ?2, ?3, ?4, ?5, ?6, NULL, NULL, 0, 0, ?7, NULL, ?8, ?9)";
const INSERT_USER: &str = "INSERT INTO users VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
const INSERT_TIMELINE: &str = "INSERT INTO timeline VALUES(?1, 1, ?2, ?3, ?4, ?5, 0)";
const AUTHORS: u64 = 40;

pub(super) static APP: App = App {
    paper: &TWITTER,
    schema: SCHEMA,
    fill: &[
        fill(1600, INSERT_USER, user),
        fill(5700, INSERT_STATUS, status),
        fill(5700, INSERT_TIMELINE, timeline),
        fill(60, "INSERT INTO cursors VALUES(?1, 1, ?2, ?3)", |model| {
            vec![model.append("cursors"), model.number(9), model.text(19..20)]
        }),
        fill(300, "INSERT INTO tokens VALUES(?1, ?2, ?3)", |model| {
            vec![model.append("tokens"), model.text(5..12), model.number(100)]
        }),
    ],
    reads_alone: 100,
    order: Order::Mixed,
    kinds: &[
        update((28, 22), INSERT_STATUS, status),
        update((22, 20), INSERT_TIMELINE, timeline),
        update((18, 20), "UPDATE users SET followers=?2, statuses=?3, updated=?4 WHERE _id=?1", |model| {
            vec![model.subject(AUTHORS), model.number(90_000), model.number(9000), model.now()]
        }),
        update((14, 14), "UPDATE statuses SET favorited=?2, retweeted=?3 WHERE _id=?1", |model| {
            vec![model.recent("statuses", 40), model.number(2), model.number(2)]
        }),
        update((10, 10), "UPDATE timeline SET is_read=1 WHERE _id=?1", |model| {
            vec![model.recent("timeline", 40)]
        }),
        update((8, 6), "UPDATE cursors SET next=?2 WHERE _id=?1", |model| {
            vec![model.subject(8), model.text(19..20)]
        }),
        update((10, 8), "INSERT INTO messages VALUES(?1, ?2, ?3, ?4, ?5, ?6, 0)", |model| {
            let (id, thread) = (model.append("messages"), model.text(12..20));
            vec![id, thread, model.subject(AUTHORS), model.number(9), model.text(20..140), model.now()]
        }),
        select(4, "SELECT * FROM timeline WHERE type=1 ORDER BY updated_at DESC LIMIT 20", |_| vec![]),
        select(4, "SELECT * FROM statuses WHERE _id=?1", |model| vec![model.recent("statuses", 60)]),
        select(2, "SELECT next FROM cursors WHERE _id=?1", |model| vec![model.subject(8)]),
        join(
            1,
            "SELECT t._id, s.content, u.name FROM timeline t JOIN statuses s ON s._id=t.ref_id \
             JOIN users u ON u._id=s.author_id WHERE t.type=?1 ORDER BY t.updated_at DESC LIMIT 20",
            |model| vec![model.number(2)],
        ),
    ],
};

fn user(model: &mut Model) -> Vec<Value> {
    let id = model.append("users");
    let mut values = vec![id, model.server_id(), model.text(6..15), model.text(8..20), model.text(40..160)];
    values.extend([model.text(20..30), model.text(6..16), model.text(60..80), model.number(90_000)]);
    values.extend([model.number(900), model.number(9000), model.now()]);
    values
}

fn status(model: &mut Model) -> Vec<Value> {
    let id = model.append("statuses");
    let mut values = vec![id.clone(), id, model.subject(AUTHORS), model.text(30..140), model.text(30..60)];
    values.extend([model.now(), model.number(64), model.blob(60..400)]);
    values.push(if model.rng().chance(6) { model.blob(1000..2400) } else { Value::Null });
    values
}

fn timeline(model: &mut Model) -> Vec<Value> {
    let id = model.append("timeline");
    let kind = Value::Integer(1 + i64::from(model.rng().chance(4)));
    vec![id, kind, model.newest("statuses"), model.subject(AUTHORS), model.now()]
}
