//! `KakaoTalk`, a messenger: short messages arrive one by one, or in a batch after the device was offline.

use crate::ppl::app::{App, Order, fill, join, select, update};
use crate::ppl::model::Model;
use crate::ppl::paper::KAKAOTALK;
use rusqlite::types::Value;

const ROOMS: u64 = 24;

const SCHEMA: &str = "
CREATE TABLE chat_logs(_id INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER, type INTEGER, chat_id INTEGER NOT NULL,
    user_id INTEGER, message TEXT, attachment TEXT, thumbnail BLOB, created_at INTEGER, read_at INTEGER);
CREATE UNIQUE INDEX chat_logs_id ON chat_logs(id);
CREATE INDEX chat_logs_chat ON chat_logs(chat_id, created_at);
CREATE TABLE chat_rooms(_id INTEGER PRIMARY KEY, type INTEGER, members TEXT, last_log_id INTEGER, last_message TEXT,
    last_updated_at INTEGER, unread_count INTEGER, watermarks TEXT, meta TEXT);
CREATE TABLE friends(_id INTEGER PRIMARY KEY, user_id INTEGER, name TEXT, phone TEXT, status_message TEXT,
    profile TEXT, updated_at INTEGER);
CREATE INDEX friends_name ON friends(name);
";

const INSERT_ROOM: &str = "INSERT INTO chat_rooms VALUES(?1, ?2, ?3, 0, '', ?4, 0, ?5, ?6)";
const INSERT_FRIEND: &str = "INSERT INTO friends VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const INSERT_LOG: &str = "INSERT INTO chat_logs VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, NULL)";

pub(super) static APP: App = App {
    paper: &KAKAOTALK,
    schema: SCHEMA,
    fill: &[
        fill(ROOMS as u32, INSERT_ROOM, |model| {
            let id = model.append("chat_rooms");
            vec![
                id,
                model.number(3),
                model.text(80..200),
                model.now(),
                model.text(60..160),
                model.text(60..120),
            ]
        }),
        fill(120, INSERT_FRIEND, friend),
    ],
    reads_alone: 100,
    order: Order::Mixed,
    kinds: &[
        update((52, 46), INSERT_LOG, log),
        update(
            (28, 34),
            "UPDATE chat_rooms SET last_log_id=?2, last_message=?3, last_updated_at=?4, unread_count=?5 WHERE _id=?1",
            |model| {
                let room = model.subject(ROOMS);
                vec![room, model.newest("chat_logs"), model.text(20..90), model.now(), model.number(9)]
            },
        ),
        update((14, 12), "UPDATE chat_rooms SET watermarks=?2, unread_count=0 WHERE _id=?1", |model| {
            vec![model.subject(ROOMS), model.text(100..260)]
        }),
        update((4, 6), "UPDATE chat_logs SET read_at=?2 WHERE _id=?1", |model| {
            vec![model.recent("chat_logs", 30), model.now()]
        }),
        update((2, 2), "UPDATE friends SET status_message=?2, updated_at=?3 WHERE _id=?1", |model| {
            vec![model.any("friends"), model.text(20..80), model.now()]
        }),
        select(5, "SELECT * FROM chat_logs WHERE chat_id=?1 ORDER BY created_at DESC LIMIT 20", |model| {
            vec![model.subject(ROOMS)]
        }),
        select(4, "SELECT _id, last_message, unread_count FROM chat_rooms WHERE _id=?1", |model| {
            vec![model.subject(ROOMS)]
        }),
        select(1, "SELECT name, phone FROM friends WHERE _id=?1", |model| vec![model.any("friends")]),
        join(
            1,
            "SELECT r._id, r.members, l.message FROM chat_rooms r JOIN chat_logs l ON l._id=r.last_log_id \
             WHERE r.unread_count>?1",
            |model| vec![model.number(3)],
        ),
    ],
};

fn friend(model: &mut Model) -> Vec<Value> {
    let id = model.append("friends");
    let (user, name, phone) = (model.server_id(), model.text(5..20), model.text(11..12));
    vec![id, user, name, phone, model.text(20..80), model.text(40..120), model.now()]
}

/// Draws the values of a message. Some messages have a picture. Its thumbnail is in the row, together with a
/// path to the full picture.
fn log(model: &mut Model) -> Vec<Value> {
    let id = model.append("chat_logs");
    let (server, room, user) = (model.ordered_id(), model.subject(ROOMS), model.number(120));
    let message = model.text(10..70);
    let (kind, path, thumbnail) = match model.rng().chance(60) {
        true => (2, model.text(40..60), model.blob(900..2200)),
        false => (1, Value::Null, Value::Null),
    };
    vec![id, server, Value::Integer(kind), room, user, message, path, thumbnail, model.now()]
}
