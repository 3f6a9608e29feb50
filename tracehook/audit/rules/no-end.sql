-- severity: error
-- sentence: A log has no trace.end: the process was killed, still runs, or ended without Python's exit handlers (os._exit), or its log could not be written.
-- advice: Look at the launcher's output and the host's kernel log (`dmesg`) for what ended the process; if it still runs, `tracehook stacks DIR` prints where it stands.
-- divergence: unless alike
WITH segments AS (
    SELECT process, count(*) AS n, sum(size) AS bytes FROM segment WHERE freed_seq IS NULL GROUP BY process),
held AS (
    SELECT process, count(*) AS n, count(*) FILTER (kind = 'window') AS windows, count(DISTINCT comm) AS communicators,
           array_to_string(list_sort(list(DISTINCT key_of(comm)))[:4], ', ') AS comms
    FROM registration WHERE how IS NULL GROUP BY process),
last AS (SELECT process, arg_max(event, seq) AS event FROM event GROUP BY process)
-- Its end came after its last event, so what that event shows comes first. A ring tells, to a tenth of a second, how long
-- its process lived after that: of several that ended, the first is the one to look at.
SELECT process, [rank] AS ranks, NULL AS comm, coalesce(alive_ns, last_ns) + 1 AS ns, NULL AS seq,
       format('{} did not end in order (killed, still running, os._exit, or a log that could not be written){}{}; held: {} ({}) and {}{}{}',
              who(rank, process), coalesce(format('; last alive at {}', in_seconds(alive_ns)), ''),
              coalesce(format('; last logged: {}, at {}', last.event, in_seconds(last_ns)), ''),
              plural(coalesce(segments.n, 0), 'segment'), in_bytes(coalesce(segments.bytes, 0)),
              plural(coalesce(held.n, 0), 'registration'),
              CASE WHEN held.n > 0 THEN format('{} on {}: {}', CASE WHEN held.windows > 0 THEN format(', {} of them windows,', held.windows) ELSE '' END,
                   plural(held.communicators, 'communicator'), held.comms) ELSE '' END,
              CASE WHEN recovered > 0 THEN format('; {} read from the ring', plural(recovered, 'event'))
                   WHEN ring THEN '; nothing more in the ring' ELSE '; no ring, so what was done last may be missing' END) AS message
FROM process LEFT JOIN segments USING (process) LEFT JOIN held USING (process) LEFT JOIN last USING (process)
WHERE NOT ended AND NOT runs AND process.how IS NULL AND signal IS NULL AND (used_cuda OR rank IS NOT NULL) AND NOT helper;
