-- One line per writer: state WRITER COUNTER ROWS HIGHEST SUM TOUCHED WRONG BULK-LOWEST BULK-HIGHEST BULK-WRONG
.mode list
.separator ' '
BEGIN;
SELECT 'state', writer, counter.n,
    (SELECT count(*) FROM entry WHERE entry.writer = counter.writer),
    (SELECT ifnull(max(n), 0) FROM entry WHERE entry.writer = counter.writer),
    (SELECT ifnull(sum(n), 0) FROM entry WHERE entry.writer = counter.writer),
    (SELECT ifnull(sum(touched), 0) FROM entry WHERE entry.writer = counter.writer),
    (SELECT count(*) FROM entry WHERE entry.writer = counter.writer AND body IS NOT printf('%0*d', 40 + n % 500, n)),
    (SELECT min(n) FROM bulk WHERE bulk.writer = counter.writer),
    (SELECT max(n) FROM bulk WHERE bulk.writer = counter.writer),
    (SELECT count(*) FROM bulk WHERE bulk.writer = counter.writer AND n > 0 AND body IS NOT replace(hex(zeroblob(150)), '00', printf('%06d', n + slot)))
FROM counter ORDER BY writer;
COMMIT;
SELECT 'integrity', integrity_check FROM pragma_integrity_check;
