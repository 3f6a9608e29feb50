-- severity: error
-- sentence: A segment lived on the device of a live communicator and was never registered with it.
-- What is queued while another thread is inside NCCL comes later, and not at all if the segment goes before that. So a
-- segment without registration counts if a younger one was registered in its time, or if it outlived its chance.
WITH pair AS (
    SELECT c.process, c.rank, c.comm, c.comm_id, c.device, c.ended_seq, s.segment, s.addr, s.size, s.born_ns, s.born_seq,
           coalesce(s.freed_seq, 9223372036854775807) AS freed_seq, p.ended
    FROM communicator c JOIN segment s USING (process, device) JOIN process p USING (process)
    WHERE c.ready_seq IS NOT NULL AND c.failed_seq IS NULL AND p.lost = 0 AND s.born_seq IS NOT NULL
      -- Beside torch's own hook tracehook registers nothing: rule hook-stands-aside.
      AND NOT EXISTS (FROM event e WHERE e.process = c.process AND e.event = 'hook.conflict')
      AND s.born_seq < coalesce(c.ended_seq, 9223372036854775807)
      AND coalesce(s.freed_seq, 9223372036854775807) > c.ready_seq),
missing AS (
    SELECT pair.* FROM pair ANTI JOIN (SELECT process, comm_id, memory AS segment FROM registration WHERE kind = 'local')
    USING (process, comm_id, segment)),
-- Where the undoing at a communicator's end, or while registration was switched off, began: what is born then has no claim.
last_chance AS (
    SELECT r.process, r.comm_id, min(r.undone_seq) AS seq
    FROM registration r JOIN segment s ON s.process = r.process AND s.segment = r.memory
    WHERE r.kind = 'local' AND coalesce(s.freed_seq > r.undone_seq, true) GROUP BY r.process, r.comm_id),
switched_off AS (
    SELECT process, seq AS from_seq,
           coalesce((SELECT min(e.seq) FROM event e WHERE e.process = off.process AND e.event = 'hook.enable' AND e.seq > off.seq),
                    9223372036854775807) AS to_seq
    FROM event off WHERE off.event = 'hook.disable'),
found AS (
    SELECT missing.* FROM missing LEFT JOIN last_chance USING (process, comm_id)
    WHERE (EXISTS (FROM registration r WHERE r.process = missing.process AND r.comm_id = missing.comm_id
                   AND r.kind = 'local' AND r.memory > missing.segment AND r.made_seq BETWEEN born_seq AND freed_seq)
           OR (freed_seq > coalesce(ended_seq, 0) AND born_seq < coalesce(last_chance.seq, ended_seq, 9223372036854775807)
               AND (ended OR ended_seq IS NOT NULL)))
      AND NOT EXISTS (FROM switched_off off WHERE off.process = missing.process AND born_seq > from_seq AND born_seq < to_seq))
SELECT process, [rank] AS ranks, comm, min(born_ns) AS ns, min(born_seq) AS seq,
       format('{} never registered {} with communicator {} (device {}), the first of them segment {} at {} ({})',
              who(any_value(rank), process), plural(count(*), 'segment'), comm, any_value(device),
              arg_min(segment, born_seq), arg_min(addr, born_seq), in_bytes(arg_min(size, born_seq)))
       || coalesce((SELECT format('; {}: {}', event, reason) FROM event e WHERE e.process = found.process
                    AND e.event = 'hook.unsupported' ORDER BY seq LIMIT 1), '') AS message
FROM found GROUP BY process, rank, comm, comm_id;
