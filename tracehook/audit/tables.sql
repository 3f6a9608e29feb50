-- What the rules, the report and the timeline ask about. `ns`: nanoseconds since the first process began.

-- A rehearsal says of a rank that it broke a rule, so it stands among the events of that rank. If the rank left no log, the
-- event stays with the rehearsal.
UPDATE event SET rank = said_rank WHERE event = 'rehearsal.violation' AND said_rank IS NOT NULL;
UPDATE event SET process = culprit.process, rank = coalesce(culprit.rank, event.rank)
FROM (SELECT teller.process AS told_by, p.process, p.rank, p.pid, p.began_ns,
             lead(p.began_ns) OVER (PARTITION BY teller.process, p.pid ORDER BY p.began_ns) AS next_ns
      FROM process AS teller JOIN process AS p ON p.host IS NOT DISTINCT FROM teller.host
      WHERE teller.process IN (SELECT process FROM event WHERE event = 'rehearsal.violation')) AS culprit
WHERE event.event = 'rehearsal.violation' AND event.process = culprit.told_by AND event.process_id = culprit.pid
  AND event.t_ns >= culprit.began_ns AND (culprit.next_ns IS NULL OR event.t_ns < culprit.next_ns);
ALTER TABLE event DROP COLUMN said_rank;
ALTER TABLE event DROP COLUMN is_no_event;

-- One row a process of which events are missing between two that are there. What was summed is not missing.
CREATE TABLE gap AS
WITH hole AS (
    SELECT process, sum(seq - before - 1) AS missing, min(before) AS before, arg_min(seq, before) AS next,
           arg_min(coalesce(before_ns, ns), before) AS ns
    FROM (SELECT process, seq, ns, coalesce(lag(seq) OVER w, from_seq - 1) AS before, lag(ns) OVER w AS before_ns
          FROM event JOIN process USING (process) WHERE seq >= from_seq WINDOW w AS (PARTITION BY process ORDER BY seq))
    WHERE seq > before + 1 GROUP BY process),
summed AS (SELECT process, sum(count) AS events FROM event WHERE event = 'log.summed' GROUP BY process)
SELECT hole.* REPLACE (missing - coalesce(events, 0) AS missing) FROM hole LEFT JOIN summed USING (process)
WHERE missing > coalesce(events, 0);

-- Of a communicator that ended before all logs tell everything, some ranks may have thrown their lines away. Then it cannot be
-- judged, and is left out. What it was called for is told at its end, and kept longer than its end.
DELETE FROM event WHERE comm IN (
    SELECT comm FROM event JOIN process USING (process)
    WHERE comm IS NOT NULL AND EXISTS (FROM process WHERE proof_ns IS NOT NULL)
    GROUP BY comm
    HAVING max(event.ranks) > count(DISTINCT event.comm_rank)
       AND coalesce(max(ns) FILTER (event.event IN ('communicator.retire', 'communicator.abort')),
                    CASE WHEN bool_and(event.event IN ('communicator.calls', 'communicator.paths')) THEN max(ns) END)
           < (SELECT max(proof_ns) FROM process));

-- One row a communicator of a process. `ending`: retire, abort or NULL (alive at the end of the log). `device_communicators`:
-- how many lived last.
CREATE TABLE communicator AS
SELECT process, any_value(rank) AS rank, comm_id, any_value(comm) AS comm, max(comm_rank) AS comm_rank,
       max(ranks) AS ranks, coalesce(any_value(local), 'own') AS local, coalesce(bool_or(adopted), false) AS adopted,
       coalesce(bool_or(at_calls), false) AS at_calls, coalesce(bool_or(one_host), false) AS one_host,
       any_value(spared) AS spared,
       coalesce(max(device) FILTER (event LIKE 'communicator.%'), max(device)) AS device,
       min(ns) FILTER (event = 'communicator.pending') AS found_ns,
       min(ns) FILTER (event = 'communicator.ready') AS ready_ns,
       min(seq) FILTER (event = 'communicator.ready') AS ready_seq,
       min(ns) FILTER (event = 'communicator.failed') AS failed_ns,
       min(seq) FILTER (event = 'communicator.failed') AS failed_seq,
       min(ns) FILTER (event IN ('communicator.retire', 'communicator.abort')) AS ended_ns,
       min(seq) FILTER (event IN ('communicator.retire', 'communicator.abort')) AS ended_seq,
       min(event[14:]) FILTER (event IN ('communicator.retire', 'communicator.abort')) AS ending,
       arg_max(device_communicators, seq) AS device_communicators
FROM event WHERE comm_id > 0 GROUP BY process, comm_id; -- 0: still being made, or very many that have ended, together

-- One row a communicator that a group of torch stands for. `members`: global ranks, in the order of the group.
CREATE TABLE communicator_group AS
SELECT comm, arg_min(coalesce("desc", "group"), process) AS name, arg_min(members, process) AS members
FROM event WHERE event = 'communicator.group' AND comm IS NOT NULL GROUP BY comm;

-- One row a segment of PyTorch's allocator, and one more each time that its memory went and other memory came (`again`).
-- `gone_seq`: when torch freed it; its memory may go later (segment.buried). `unmapped_seq`: it sleeps since then.
CREATE TABLE segment AS
SELECT process, any_value(rank) AS rank, segment, max(device) AS device,
       any_value(addr) AS addr, max(size) AS size, any_value(memory_kind) AS memory_kind, any_value(left_out) AS left_out,
       min(ns) FILTER (event IN ('segment.alloc', 'segment.adopt', 'segment.map')) AS born_ns,
       min(seq) FILTER (event IN ('segment.alloc', 'segment.adopt', 'segment.map')) AS born_seq,
       min(ns) FILTER (event IN ('segment.free', 'segment.unmap')) AS freed_ns,
       min(seq) FILTER (event IN ('segment.free', 'segment.unmap')) AS freed_seq,
       min(seq) FILTER (event IN ('segment.free', 'segment.buried', 'segment.unmap')) AS gone_seq,
       min(seq) FILTER (event = 'segment.unmap') AS unmapped_seq, bool_or(event = 'segment.map') AS again
FROM event WHERE event IN ('segment.alloc', 'segment.adopt', 'segment.map', 'segment.free', 'segment.buried', 'segment.unmap')
GROUP BY process, segment;

-- One row a segment of our pools, from the driver and back to it.
CREATE TABLE pool_segment AS
SELECT process, any_value(rank) AS rank, pool_segment, max(pool) AS pool, max(device) AS device,
       any_value(addr) AS addr, max(size) AS size,
       min(ns) FILTER (event = 'pool.grow') AS born_ns, min(ns) FILTER (event = 'pool.shrink') AS freed_ns,
       min(seq) FILTER (event = 'pool.shrink') AS freed_seq
FROM event WHERE event IN ('pool.grow', 'pool.shrink') GROUP BY process, pool_segment;

-- Each successful step of a registration, with the one before and the one after for the same memory and communicator.
-- `memory` is the number of a segment (kind local) or of a segment of our pools (kind window). A window that the program
-- registered has neither, and stands under a negative number made of its address: it may be made twice. A segment may be
-- registered once for collectives and once for sends and receives.
CREATE TABLE step AS
SELECT process, rank, device, comm, comm_id, comm_rank, kind, memory, addr, size, us, effective, ordinal, capturing,
       event, ns, seq, lag(event) OVER w AS before, lead(event) OVER w AS after, lead(ns) OVER w AS after_ns,
       lead(seq) OVER w AS after_seq
FROM (SELECT *, split_part(event, '.', 2) AS kind, coalesce(segment, pool_segment, -CAST(hash(addr) >> 2 AS BIGINT)) AS memory
      FROM event WHERE event IN ('register.local', 'deregister.local', 'register.window', 'deregister.window')
        AND ok AND NOT (event = 'register.window' AND NOT coalesce(effective, true)))
WINDOW w AS (PARTITION BY process, comm_id, kind, memory, coalesce(for_transfers, false) ORDER BY seq);

-- One row a registration that was made. `how` it ended: deregistered, aborted, or NULL (held at the end of the log).
-- `comm_device`: that of the communicator.
CREATE TABLE registration AS
SELECT step.process, step.rank, step.device, step.comm, step.comm_id, step.comm_rank, communicator.device AS comm_device,
       kind, memory, addr, size, us,
       effective, ordinal, capturing, ns AS made_ns, seq AS made_seq,
       CASE WHEN after LIKE 'deregister.%' THEN after_ns WHEN ending = 'abort' THEN ended_ns END AS undone_ns,
       CASE WHEN after LIKE 'deregister.%' THEN after_seq WHEN ending = 'abort' THEN ended_seq END AS undone_seq,
       CASE WHEN after LIKE 'deregister.%' THEN 'deregistered' WHEN ending = 'abort' THEN 'aborted' END AS how
FROM step LEFT JOIN communicator USING (process, comm_id)
WHERE event LIKE 'register.%';

-- One row a segment of a peer that was mapped. `memory`: its number at its owner, `generation`: at the owner, too.
CREATE TABLE mapping AS
SELECT process, rank, device, comm, comm_rank, peer, peer_life, generation, kind, memory, addr, size, us,
       ns AS opened_ns, seq AS opened_seq, coalesce(before = 'ipc.open', false) AS opened_before,
       CASE WHEN after = 'ipc.close' THEN after_ns END AS closed_ns, CASE WHEN after = 'ipc.close' THEN after_seq END AS closed_seq
FROM (SELECT *, CASE WHEN peer_segment IS NOT NULL THEN 'segment' WHEN peer_pool_segment IS NOT NULL THEN 'pool segment'
                  ELSE 'memory' END AS kind,
             coalesce(peer_segment, peer_pool_segment) AS memory, lag(event) OVER w AS before, lead(event) OVER w AS after,
             lead(ns) OVER w AS after_ns, lead(seq) OVER w AS after_seq
      FROM event WHERE event IN ('ipc.open', 'ipc.close') AND ok WINDOW w AS (PARTITION BY process, peer_life, generation ORDER BY seq))
WHERE event = 'ipc.open';

-- What is known of each process when all is read. `lost`: events that are in no file; what balances is then not checked.
CREATE TABLE fact AS
SELECT process, count(*) FILTER (event NOT LIKE 'trace.%') AS events, count(*) FILTER (recovered) AS recovered,
       min(ns) AS first_ns, max(ns) AS last_ns, max(seq) AS last_seq,
       greatest(coalesce(any_value(missing), 0), coalesce(max(dropped) FILTER (event = 'trace.end'), 0)) AS lost,
       bool_or(device IS NOT NULL) AS used_cuda,
       count(*) FILTER (event = 'communicator.pending') AS communicators
FROM event LEFT JOIN (SELECT process, missing FROM gap) USING (process) GROUP BY process;

-- How each process ended, as far as its log tells. Without trace.end it called os._exit, or came no further than an
-- exception; with it that line knows whether the exception was the end. `ended_ns`: when the first of these was logged.
CREATE TABLE ending AS
WITH said AS (
    SELECT process, bool_or(event = 'trace.end') AS whole, min(ns) FILTER (event = 'python.exception') AS raised_ns,
           min(ns) FILTER (event = 'python.exit') AS left_ns, min(ns) FILTER (event = 'trace.end') AS end_ns,
           any_value(how) AS how, any_value(status) AS status,
           {'exception': any_value(exception) FILTER (event = 'trace.end'), 'message': any_value(message) FILTER (event = 'trace.end')} AS at_end,
           {'exception': any_value(exception) FILTER (event = 'python.exception'),
            'message': any_value(message) FILTER (event = 'python.exception')} AS before
    FROM event WHERE event IN ('trace.end', 'python.exit', 'python.exception') GROUP BY process)
SELECT process, CASE WHEN whole THEN how WHEN left_ns IS NOT NULL THEN 'os._exit' ELSE 'exception' END AS how,
       CASE WHEN whole THEN at_end.exception WHEN raised_ns IS NOT NULL THEN coalesce(before.exception, 'an exception') END AS exception,
       CASE WHEN whole THEN at_end.message ELSE before.message END AS message, status,
       least(CASE WHEN how = 'exception' OR NOT whole THEN raised_ns END, left_ns, end_ns) AS ended_ns
FROM said;

ALTER TABLE process RENAME TO told;
CREATE TABLE process AS
SELECT told.* REPLACE (greatest(alive_ns + shift_ns, last_ns + 1) AS alive_ns), coalesce(events, 0) AS events, coalesce(recovered, 0) AS recovered, first_ns, last_ns,
       greatest(coalesce(lost, 0), coalesce(ring_dropped, 0)) AS lost, coalesce(used_cuda, false) AS used_cuda,
       coalesce(communicators, 0) AS communicators, how, exception, message, status, ended_ns,
       coalesce(exception IS NOT NULL OR status != 0, false) AS failed
FROM told LEFT JOIN fact USING (process) LEFT JOIN ending USING (process);
DROP TABLE told;
DROP TABLE ending;

-- A child of a rank has the rank's number too (a data loader, a pool of processes). `helper`: it used no device while one did, or
-- began when that one had communicators, and made none.
ALTER TABLE process ADD COLUMN helper BOOLEAN DEFAULT false;
UPDATE process SET helper = true WHERE rank IS NOT NULL AND EXISTS (
    FROM process AS main WHERE main.used_cuda AND main.rank = process.rank AND main.job IS NOT DISTINCT FROM process.job
      AND main.first_ns <= coalesce(process.alive_ns, process.last_ns)
      AND process.first_ns <= coalesce(main.alive_ns, main.last_ns)
      AND (NOT process.used_cuda OR process.communicators = 0 AND EXISTS (
          FROM communicator WHERE communicator.process = main.process AND found_ns < process.first_ns)));
DROP TABLE fact;
