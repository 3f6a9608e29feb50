-- What a Parquet file holds. `line` has new lines of some logs, `source` says which log each file of lines is of.

-- Of a log's lines those that are not in the export yet. A part of a log begins with lines that the part before has too.
CREATE OR REPLACE TEMP TABLE fresh AS
SELECT source.process, source.recovered, line.* EXCLUDE (file, is_no_event)
FROM line JOIN source USING (file)
WHERE NOT is_no_event
  AND (source.from_seq IS NULL
       OR (line.event != 'trace.begin' AND CASE WHEN line.seq IS NULL THEN line.t_ns > source.after_t_ns ELSE line.seq >= source.from_seq END))
  AND coalesce(line.seq, line.until_seq, source.reached + 1) > source.reached;

-- What the ring still had, and the file has too.
DELETE FROM fresh WHERE recovered AND seq <= (
    SELECT max(greatest(coalesce(logged.seq, 0), coalesce(logged.until_seq, 0))) FROM fresh AS logged
    WHERE NOT logged.recovered AND logged.process = fresh.process);

CREATE OR REPLACE TEMP VIEW exported AS
SELECT process.number, process.name AS process, process.host, process.pid, coalesce(process.rank, known.rank) AS rank,
       process.began + to_microseconds((fresh.t_ns - process.began_ns) // 1000) AS time,
       fresh.* EXCLUDE (process, rank), fresh.rank AS said_rank
FROM fresh JOIN process ON process.number = fresh.process
     LEFT JOIN (SELECT process, any_value(rank) AS rank FROM fresh WHERE event = 'rank.known' GROUP BY process) AS known USING (process);
