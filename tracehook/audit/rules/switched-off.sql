-- severity: warning
-- sentence: Registration was switched off (tracehook.disable) while communicators and segments lived.
-- advice: Call tracehook.enable() again on all ranks, or start the job with SYMM_REGISTER_HOOK=0 if that is what you want.
-- divergence: unless all
-- needs: hook.disable
WITH off AS (
    SELECT process, rank, ns, seq,
           (SELECT min(e.ns) FROM event e WHERE e.process = event.process AND e.event = 'hook.enable' AND e.seq > event.seq) AS on_ns,
           coalesce((SELECT min(e.seq) FROM event e WHERE e.process = event.process AND e.event = 'hook.enable'
                     AND e.seq > event.seq), 9223372036854775807) AS on_seq
    FROM event WHERE event = 'hook.disable')
SELECT process, [rank] AS ranks, NULL AS comm, ns, seq,
       format('{} had registration switched off {}: {} and {} lived then without it', who(rank, process),
              CASE WHEN on_ns IS NULL THEN 'to the end of its log' ELSE 'for ' || in_seconds(on_ns - ns) END,
              plural(segments, 'segment'), plural(communicators, 'communicator')) AS message
FROM (SELECT *, (SELECT count(*) FROM segment s WHERE s.process = off.process AND s.born_seq < on_seq
                 AND coalesce(s.freed_seq > off.seq, true)) AS segments,
             (SELECT count(*) FROM communicator c WHERE c.process = off.process AND c.ready_seq < on_seq
              AND coalesce(c.ended_seq > off.seq, true)) AS communicators FROM off)
WHERE segments > 0 AND communicators > 0;
