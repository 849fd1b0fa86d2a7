-- What the transactions of transactions.awk keep: each writer's rows, its counter, and pages that one
-- transaction changes together.
BEGIN;
CREATE TABLE entry(writer INT, n INT, touched INT DEFAULT 0, body TEXT, PRIMARY KEY(writer, n));
CREATE TABLE counter(writer INTEGER PRIMARY KEY, n INT);
CREATE TABLE bulk(writer INT, slot INT, n INT, body TEXT, PRIMARY KEY(writer, slot));
INSERT INTO counter VALUES(1, 0), (2, 0);
WITH RECURSIVE c(slot) AS (SELECT 1 UNION ALL SELECT slot + 1 FROM c WHERE slot < 100)
    INSERT INTO bulk SELECT writer, slot, 0, '' FROM counter, c;
COMMIT;
