//! Gmail: messages arrive in batches, and each message changes several tables, and the indexes of labels.

use crate::ppl::app::{App, Order, fill, join, select, update};
use crate::ppl::model::Model;
use crate::ppl::paper::GMAIL;
use rusqlite::types::Value;

const LABELS: u64 = 12;

const SCHEMA: &str = "
CREATE TABLE messages(_id INTEGER PRIMARY KEY, messageId INTEGER, conversation INTEGER, fromAddress TEXT,
    toAddresses TEXT, dateSentMs INTEGER, subject TEXT, snippet TEXT, body BLOB, synced INTEGER);
CREATE INDEX messages_id ON messages(messageId);
CREATE INDEX messages_conversation ON messages(conversation);
CREATE TABLE conversations(_id INTEGER PRIMARY KEY, subject TEXT, snippet TEXT, fromAddress TEXT, numMessages INTEGER,
    maxMessageId INTEGER, hasAttachments INTEGER, labelIds TEXT, queryId INTEGER);
CREATE TABLE conversation_labels(_id INTEGER PRIMARY KEY, labels_id INTEGER, conversation_id INTEGER,
    sortMessageId INTEGER, isZombie INTEGER);
CREATE INDEX conversation_labels_label ON conversation_labels(labels_id, sortMessageId);
CREATE TABLE message_labels(labels_id INTEGER, message_id INTEGER, PRIMARY KEY(message_id, labels_id)) WITHOUT ROWID;
CREATE TABLE labels(_id INTEGER PRIMARY KEY, canonicalName TEXT, name TEXT, numConversations INTEGER,
    numUnread INTEGER, lastTouched INTEGER);
CREATE TABLE operations(_id INTEGER PRIMARY KEY, action TEXT, message_id INTEGER, value INTEGER, timestamp INTEGER);
CREATE TABLE sync_settings(_id INTEGER PRIMARY KEY, name TEXT, value TEXT);
";

const INSERT_MESSAGE: &str = "INSERT INTO messages VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 1)";
const INSERT_LABEL: &str = "INSERT OR REPLACE INTO message_labels VALUES(?1, ?2)";
const INSERT_CONVERSATION: &str = "INSERT INTO conversations VALUES(?1, ?2, ?3, ?4, 1, ?5, 0, ?6, 1)";
const INSERT_SORTED: &str = "INSERT INTO conversation_labels VALUES(?1, ?2, ?3, ?4, 0)";

pub(super) static APP: App = App {
    paper: &GMAIL,
    schema: SCHEMA,
    fill: &[
        fill(LABELS as u32, "INSERT INTO labels VALUES(?1, ?2, ?3, 0, 0, ?4)", |model| {
            vec![model.append("labels"), model.text(4..10), model.text(4..16), model.now()]
        }),
        fill(24, "INSERT INTO sync_settings VALUES(?1, ?2, ?3)", |model| {
            vec![model.append("sync_settings"), model.text(10..30), model.text(4..20)]
        }),
        fill(40, INSERT_CONVERSATION, conversation),
        fill(30, INSERT_MESSAGE, message),
    ],
    reads_alone: 3,
    order: Order::Mixed,
    kinds: &[
        update((10, 7), INSERT_MESSAGE, message),
        update((4, 4), "DELETE FROM messages WHERE _id=?1", |model| vec![model.remove_oldest("messages")]),
        update((10, 20), INSERT_LABEL, |model| vec![model.number(LABELS), model.recent("messages", 3)]),
        update((4, 3), INSERT_CONVERSATION, conversation),
        update(
            (20, 18),
            "UPDATE conversations SET snippet=?2, numMessages=numMessages+1, maxMessageId=?3, labelIds=?4 WHERE _id=?1",
            |model| {
                let id = model.recent("conversations", 6);
                vec![id, model.text(40..90), model.newest("messages"), model.text(10..20)]
            },
        ),
        update((8, 8), INSERT_SORTED, |model| {
            let (id, label) = (model.append("conversation_labels"), model.number(LABELS));
            vec![id, label, model.recent("conversations", 6), model.newest("messages")]
        }),
        update((3, 4), "DELETE FROM conversation_labels WHERE _id=?1", |model| {
            vec![model.remove_oldest("conversation_labels")]
        }),
        update(
            (20, 18),
            "UPDATE labels SET numConversations=?2, numUnread=?3, lastTouched=?4 WHERE _id=?1",
            |model| vec![model.subject(LABELS), model.number(90), model.number(30), model.now()],
        ),
        update((5, 4), "INSERT INTO operations VALUES(?1, ?2, ?3, ?4, ?5)", |model| {
            let (id, action) = (model.append("operations"), model.text(8..16));
            vec![id, action, model.recent("messages", 6), model.number(LABELS), model.now()]
        }),
        update((4, 4), "DELETE FROM operations WHERE _id=?1", |model| {
            vec![model.remove_oldest("operations")]
        }),
        update((8, 4), "UPDATE sync_settings SET value=?2 WHERE _id=?1", |model| {
            vec![model.number(24), model.text(4..20)]
        }),
        select(5, "SELECT * FROM conversations WHERE _id=?1", |model| {
            vec![model.recent("conversations", 12)]
        }),
        select(3, "SELECT name, numUnread FROM labels", |_| vec![]),
        select(1, "SELECT _id, subject FROM messages WHERE snippet LIKE '%' || ?1 || '%' LIMIT 5", |model| {
            vec![model.text(4..6)]
        }),
        join(
            1,
            "SELECT c.subject, l.sortMessageId FROM conversation_labels l JOIN conversations c ON c._id=l.conversation_id \
             WHERE l.labels_id=?1 ORDER BY l.sortMessageId DESC LIMIT 10",
            |model| vec![model.subject(LABELS)],
        ),
        join(
            1,
            "SELECT m.subject, l.labels_id FROM messages m JOIN message_labels l ON l.message_id=m._id WHERE m._id=?1",
            |model| vec![model.recent("messages", 12)],
        ),
    ],
};

fn message(model: &mut Model) -> Vec<Value> {
    let id = model.append("messages");
    let (server, conversation) = (model.ordered_id(), model.recent("conversations", 6));
    let mut values = vec![id, server, conversation, model.text(12..30), model.text(12..60), model.now()];
    values.extend([model.text(10..50), model.text(40..90), model.blob(700..2000)]);
    values
}

fn conversation(model: &mut Model) -> Vec<Value> {
    let id = model.append("conversations");
    let mut values = vec![id, model.text(10..50), model.text(40..90), model.text(12..30)];
    values.extend([model.newest("messages"), model.text(10..20)]);
    values
}
