-- severity: error
-- sentence: A segment lived on the device of a live communicator and was never registered with it.
-- advice: Switch tracehook on before the first communicator, as SYMM_REGISTER_HOOK=1 does; if it was on, report it with the logs.
-- divergence: unless all
-- A segment that is queued while another thread is inside NCCL is registered when that one leaves, or not at all if the segment
-- goes, or the communicator ends, before. Neither beginning is in the log, only that it came after the last other event of
-- its thread. So a segment counts
--   * if a younger one was registered before its free can have begun,
--   * or if it was there before and after the communicator's end,
--   * or if both were there when the process ended.
WITH claim AS (
    SELECT process, device, comm_id, ready_seq, coalesce(ended_seq, 4611686018427387903) AS over_seq,
           -- Somebody else registers with it, and what it registered before we looked is in no log.
           CASE WHEN c.local = 'observed' AND adopted THEN ready_seq ELSE 0 END AS claims_from
    FROM communicator c JOIN process p USING (process)
    WHERE ready_seq IS NOT NULL AND failed_seq IS NULL AND NOT at_calls AND p.lost = 0
      AND (c.local = 'own' OR c.local = 'observed' AND EXISTS (
          FROM registration r WHERE r.process = c.process AND r.comm_id = c.comm_id AND r.kind = 'local'))
      -- Beside torch's own hook tracehook registers nothing: rule hook-stands-aside.
      AND NOT EXISTS (FROM event e WHERE e.process = c.process AND e.event = 'hook.conflict')),
life AS (
    SELECT process, device, segment, born_seq, coalesce(gone_seq, 4611686018427387903) AS gone_seq
    FROM segment JOIN process USING (process)
    -- What a rule leaves out with some communicators only is looked at with none. Before schema 1.21: `local_min`.
    WHERE born_seq IS NOT NULL AND memory_kind IS DISTINCT FROM 'pausable' AND left_out IS NULL
      AND size >= coalesce(try_cast(local_min AS BIGINT), 0)),
-- How many segments a communicator met follows from two counts, so only those that registered fewer have to be looked at.
births AS (
    SELECT process, device, born_seq, row_number() OVER (PARTITION BY process, device ORDER BY born_seq) AS born FROM life),
deaths AS (
    SELECT process, device, gone_seq, row_number() OVER (PARTITION BY process, device ORDER BY gone_seq) AS gone FROM life
    WHERE gone_seq < 4611686018427387903),
counted AS (
    SELECT claim.*, coalesce(born, 0) - coalesce(gone, 0) AS segments
    FROM claim ASOF LEFT JOIN births ON births.process = claim.process AND births.device = claim.device AND born_seq < over_seq
    ASOF LEFT JOIN deaths ON deaths.process = claim.process AND deaths.device = claim.device AND gone_seq <= ready_seq),
held AS (
    SELECT process, comm_id, count(DISTINCT segment) AS segments
    FROM claim JOIN registration r USING (process, comm_id) JOIN life ON life.process = claim.process
         AND life.device = claim.device AND life.segment = r.memory
    WHERE r.kind = 'local' AND born_seq < over_seq AND gone_seq > ready_seq GROUP BY process, comm_id),
lacking AS MATERIALIZED (
    SELECT counted.* EXCLUDE (segments) FROM counted LEFT JOIN held USING (process, comm_id)
    WHERE counted.segments > coalesce(held.segments, 0))
SELECT process, comm_id, segment FROM (FROM lacking JOIN life USING (process, device) WHERE born_seq > claims_from)
ANTI JOIN (SELECT process, comm_id, memory AS segment FROM registration WHERE kind = 'local') USING (process, comm_id, segment)
WHERE born_seq < over_seq AND gone_seq > ready_seq;
-- then
WITH pair AS (
    SELECT process, c.rank, c.comm, comm_id, c.device, c.ready_seq, c.ended_seq, c.ending, segment, s.addr, s.size, s.born_ns,
           s.born_seq, s.gone_seq AS freed_seq, p.ended, p.last_ns
    FROM suspect JOIN communicator c USING (process, comm_id) JOIN segment s USING (process, segment) JOIN process p USING (process)),
-- Where the undoing at a communicator's end, or while registration was switched off, began: what is born then has no claim.
last_chance AS (
    SELECT r.process, r.comm_id, min(r.undone_seq) AS seq
    FROM registration r LEFT JOIN segment s ON r.kind = 'local' AND s.process = r.process AND s.segment = r.memory
    WHERE coalesce(s.gone_seq > r.undone_seq, true) GROUP BY r.process, r.comm_id),
switched_off AS (
    SELECT process, seq AS from_seq,
           coalesce((SELECT min(e.seq) FROM event e WHERE e.process = off.process AND e.event = 'hook.enable' AND e.seq > off.seq),
                    9223372036854775807) AS to_seq
    FROM event off WHERE off.event = 'hook.disable'),
missing AS (
    SELECT pair.*, birth.thread AS born_by, free.thread AS freed_by, finish.thread AS ended_by,
           coalesce(last_chance.seq, ended_seq, 9223372036854775807) AS last_chance
    FROM pair
    LEFT JOIN last_chance USING (process, comm_id)
    LEFT JOIN event birth ON birth.process = pair.process AND birth.seq = born_seq
    LEFT JOIN event free ON free.process = pair.process AND free.seq = freed_seq
    LEFT JOIN event finish ON finish.process = pair.process AND finish.seq = ended_seq),
-- What a thread does between two segments, or two registrations of one.
other AS (
    SELECT process, thread, seq, event != 'register.local' AS is_next FROM event
    WHERE thread IS NOT NULL AND event != 'deregister.local'),
-- Until when it was there for certain; from when its allocation was over; before when the communicator's end did not begin.
known AS (
    SELECT missing.*, CASE WHEN freed_seq IS NULL THEN 9223372036854775807 ELSE coalesce(before_free.seq, 0) END AS there_until,
           after_birth.seq AS there_from, before_end.seq AS end_after
    FROM missing
    ASOF LEFT JOIN other before_free ON before_free.process = missing.process AND before_free.thread = freed_by
                                        AND before_free.seq < freed_seq
    ASOF LEFT JOIN other before_end ON before_end.process = missing.process AND before_end.thread = ended_by
                                       AND before_end.seq < missing.last_chance
    ASOF LEFT JOIN (FROM other WHERE is_next) after_birth ON after_birth.process = missing.process
                                                             AND after_birth.thread = born_by AND after_birth.seq > born_seq),
batch AS (
    SELECT process, comm_id, max(seq) AS last_seq FROM event WHERE event = 'register.batch' GROUP BY process, comm_id),
made AS (
    SELECT process, comm_id, memory, made_seq FROM registration LEFT JOIN batch USING (process, comm_id)
    WHERE kind = 'local' AND (us IS NOT NULL OR made_seq < last_seq)),
found AS (
    SELECT known.* FROM known
    WHERE (EXISTS (FROM made WHERE made.process = known.process AND made.comm_id = known.comm_id
                   AND made.memory > known.segment AND made.made_seq BETWEEN born_seq AND there_until)
           OR (born_seq < last_chance AND CASE
               WHEN ended_seq IS NULL THEN freed_seq IS NULL AND ended AND last_ns - born_ns > 100_000_000
               ELSE ending = 'retire' AND there_until > ended_seq AND (born_by = ended_by OR there_from <= end_after) END
               AND NOT EXISTS (FROM switched_off off WHERE off.process = known.process AND to_seq > ready_seq)))
      AND NOT EXISTS (FROM switched_off off WHERE off.process = known.process AND born_seq > from_seq AND born_seq < to_seq))
SELECT process, [rank] AS ranks, comm, min(born_ns) AS ns, min(born_seq) AS seq,
       format('{} never registered {} with {} (device {}), the first of them segment {} at {} ({})',
              who(any_value(rank), process), plural(count(*), 'segment'), group_of(comm), any_value(device),
              arg_min(segment, born_seq), arg_min(addr, born_seq), in_bytes(arg_min(size, born_seq)))
       || coalesce((SELECT format('; {}: {}', event, reason) FROM event e WHERE e.process = found.process
                    AND e.event = 'hook.unsupported' ORDER BY seq LIMIT 1), '') AS message
FROM found GROUP BY process, rank, comm, comm_id;
