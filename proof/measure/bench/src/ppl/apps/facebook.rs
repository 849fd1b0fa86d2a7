//! Facebook: the application stores most of what is on the screen, with many small thumbnails as blobs.

use crate::ppl::app::{App, Order, fill, join, select, update};
use crate::ppl::model::Model;
use crate::ppl::paper::FACEBOOK;
use rusqlite::types::Value;

const PEOPLE: u64 = 200;

const SCHEMA: &str = "
CREATE TABLE home_stories(_id INTEGER PRIMARY KEY, cursor TEXT, sort_key INTEGER, fetched_at INTEGER, story_type TEXT,
    story BLOB, seen INTEGER, likes INTEGER, comments INTEGER);
CREATE UNIQUE INDEX home_stories_cursor ON home_stories(cursor);
CREATE INDEX home_stories_sort ON home_stories(sort_key);
CREATE TABLE media(_id INTEGER PRIMARY KEY, story_id INTEGER, url TEXT, thumbnail BLOB);
CREATE INDEX media_story ON media(story_id);
CREATE TABLE people(_id INTEGER PRIMARY KEY, uid INTEGER, name TEXT, search_token TEXT, status TEXT, picture BLOB,
    updated INTEGER);
CREATE INDEX people_token ON people(search_token);
CREATE TABLE threads(_id INTEGER PRIMARY KEY, name TEXT, snippet TEXT, participants TEXT, unread INTEGER,
    timestamp INTEGER);
CREATE TABLE messages(_id INTEGER PRIMARY KEY, thread_id INTEGER, sender INTEGER, text TEXT, timestamp INTEGER,
    attachments TEXT);
CREATE INDEX messages_thread ON messages(thread_id, timestamp);
CREATE TABLE notifications(_id INTEGER PRIMARY KEY, actor INTEGER, text TEXT, href TEXT, seen INTEGER, updated INTEGER);
CREATE INDEX notifications_updated ON notifications(updated);
CREATE TABLE preferences(_id INTEGER PRIMARY KEY, name TEXT, value TEXT);
";

const INSERT_STORY: &str = "INSERT INTO home_stories VALUES(?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8)";
const INSERT_MEDIA: &str = "INSERT INTO media VALUES(?1, ?2, ?3, ?4)";
const INSERT_PERSON: &str = "INSERT INTO people VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const INSERT_MESSAGE: &str = "INSERT INTO messages VALUES(?1, ?2, ?3, ?4, ?5, NULL)";

pub(super) static APP: App = App {
    paper: &FACEBOOK,
    schema: SCHEMA,
    fill: &[
        fill(PEOPLE as u32, INSERT_PERSON, |model| {
            let id = model.append("people");
            let mut values =
                vec![id, model.server_id(), model.text(8..20), model.text(6..12), model.text(20..90)];
            values.extend([model.blob(800..1600), model.now()]);
            values
        }),
        fill(30, "INSERT INTO threads VALUES(?1, ?2, ?3, ?4, 0, ?5)", |model| {
            let id = model.append("threads");
            vec![id, model.text(8..20), model.text(20..80), model.text(40..90), model.now()]
        }),
        fill(60, "INSERT INTO preferences VALUES(?1, ?2, ?3)", |model| {
            vec![model.append("preferences"), model.text(20..40), model.text(4..40)]
        }),
        fill(160, INSERT_STORY, story),
        fill(160, INSERT_MEDIA, thumbnail),
        fill(300, INSERT_MESSAGE, message),
    ],
    reads_alone: 50,
    order: Order::Mixed,
    kinds: &[
        update((20, 22), INSERT_STORY, story),
        update((16, 22), INSERT_MEDIA, thumbnail),
        update((14, 14), "UPDATE home_stories SET likes=?2, comments=?3, seen=1 WHERE _id=?1", |model| {
            vec![model.recent("home_stories", 12), model.number(900), model.number(90)]
        }),
        update((18, 14), INSERT_MESSAGE, message),
        update((14, 12), "UPDATE threads SET snippet=?2, unread=?3, timestamp=?4 WHERE _id=?1", |model| {
            vec![model.subject(30), model.text(20..80), model.number(9), model.now()]
        }),
        update((10, 10), "INSERT INTO notifications VALUES(?1, ?2, ?3, ?4, 0, ?5)", |model| {
            let (id, actor) = (model.append("notifications"), model.subject(PEOPLE));
            vec![id, actor, model.text(30..90), model.text(50..80), model.now()]
        }),
        update((8, 6), "UPDATE preferences SET value=?2 WHERE _id=?1", |model| {
            vec![model.subject(60), model.text(4..40)]
        }),
        select(4, "SELECT * FROM home_stories ORDER BY sort_key DESC LIMIT 10", |_| vec![]),
        select(3, "SELECT thumbnail FROM media WHERE story_id=?1", |model| {
            vec![model.recent("home_stories", 12)]
        }),
        select(3, "SELECT * FROM messages WHERE thread_id=?1 ORDER BY timestamp DESC LIMIT 20", |model| {
            vec![model.subject(30)]
        }),
        select(2, "SELECT name, picture FROM people WHERE _id=?1", |model| vec![model.any("people")]),
        join(
            1,
            "SELECT t.name, m.text, m.timestamp FROM threads t JOIN messages m ON m.thread_id=t._id WHERE t._id=?1 \
             ORDER BY m.timestamp DESC LIMIT 5",
            |model| vec![model.subject(30)],
        ),
    ],
};

fn story(model: &mut Model) -> Vec<Value> {
    let id = model.append("home_stories");
    let now = model.now();
    let mut values = vec![id, model.text(24..25), now.clone(), now, model.text(8..14), model.blob(200..700)];
    values.extend([model.number(900), model.number(90)]);
    values
}

/// Draws the values of a small picture that belongs to a story.
fn thumbnail(model: &mut Model) -> Vec<Value> {
    let id = model.append("media");
    vec![id, model.newest("home_stories"), model.text(60..90), model.blob(600..2600)]
}

fn message(model: &mut Model) -> Vec<Value> {
    let id = model.append("messages");
    vec![id, model.subject(30), model.subject(PEOPLE), model.text(10..110), model.now()]
}
