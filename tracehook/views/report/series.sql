-- Bytes over time. A place is a device as one process sees it; `change` says by how much a series of it rises or falls, and when.
-- `gone_ns`: the last sign of life of its process, which may come long after its last event or call.

CREATE OR REPLACE TEMP TABLE place AS
SELECT row_number() OVER (ORDER BY rank NULLS LAST, process, device) - 1 AS place, *
FROM (SELECT process, rank, pid, host, device, said, greatest(first_ns, 0) AS first_ns, last_ns, ended,
             CASE WHEN ended THEN last_ns ELSE greatest(last_ns, alive_ns, signal_ns + shift_ns) END AS gone_ns,
             count(*) OVER (PARTITION BY process) AS devices, count(*) OVER (PARTITION BY rank, device) AS namesakes
      FROM (SELECT process, device, count(*) AS said FROM event WHERE device >= 0 GROUP BY ALL) JOIN process USING (process)
      ORDER BY said DESC LIMIT 8192);

CREATE OR REPLACE TEMP TABLE change AS
WITH
-- A memory is registered as long as at least one communicator holds it.
hold AS (
    SELECT process, device, kind, memory, size, made_ns AS ns, made_seq AS seq, 1 AS step FROM registration
    UNION ALL
    SELECT process, device, kind, memory, size, undone_ns, undone_seq, -1 FROM registration WHERE undone_ns IS NOT NULL),
holders AS (
    SELECT *, sum(step) OVER (PARTITION BY process, kind, memory ORDER BY seq, step DESC ROWS UNBOUNDED PRECEDING) AS n FROM hold),
idle AS (
    SELECT process, device, size, event, ns, lead(ns) OVER (PARTITION BY process, pool_segment ORDER BY seq) AS until_ns FROM event
    WHERE event IN ('segment.retire', 'segment.reuse', 'pool.shrink')),
told (process, device, series, ns, delta) AS (
    SELECT process, device, 'held', born_ns, size::DOUBLE FROM segment WHERE born_ns IS NOT NULL
    UNION ALL
    SELECT process, device, 'held', freed_ns, -size::DOUBLE FROM segment WHERE born_ns IS NOT NULL AND freed_ns IS NOT NULL
    UNION ALL
    SELECT process, device, 'held', ns, if(event = 'range.map', 1, -1) * size::DOUBLE FROM event
    WHERE event IN ('range.map', 'range.unmap')
    UNION ALL
    SELECT process, device, CASE kind WHEN 'window' THEN 'window' ELSE 'registered' END, ns, step * size::DOUBLE FROM holders
    WHERE (n = 1 AND step = 1) OR (n = 0 AND step = -1)
    UNION ALL
    SELECT process, device, 'pool', born_ns, size::DOUBLE FROM pool_segment WHERE born_ns IS NOT NULL
    UNION ALL
    SELECT process, device, 'pool', freed_ns, -size::DOUBLE FROM pool_segment WHERE born_ns IS NOT NULL AND freed_ns IS NOT NULL
    UNION ALL
    SELECT process, device, 'idle', ns, size::DOUBLE FROM idle WHERE event = 'segment.retire'
    UNION ALL
    SELECT process, device, 'idle', until_ns, -size::DOUBLE FROM idle WHERE event = 'segment.retire' AND until_ns IS NOT NULL
    UNION ALL
    SELECT process, device, 'live', ready_ns, 1 FROM communicator WHERE ready_ns IS NOT NULL
    UNION ALL
    SELECT process, device, 'live', least(ended_ns, failed_ns), -1 FROM communicator
    WHERE ready_ns IS NOT NULL AND (ended_ns IS NOT NULL OR failed_ns IS NOT NULL))
SELECT place, series, ns, sum(delta) AS delta,
       sum(sum(delta)) OVER (PARTITION BY place, series ORDER BY ns ROWS UNBOUNDED PRECEDING) AS level
FROM told JOIN place USING (process, device) GROUP BY place, series, ns;

-- Time spent in NCCL for registrations. Those of a batch have no time of their own; their batch has.
CREATE OR REPLACE TEMP TABLE call AS
SELECT process, device, comm, comm_id, ns, event, split_part(event, '.', 1) AS verb,
       CASE WHEN event LIKE '%.window' THEN 'window' ELSE 'local' END AS kind,
       CASE WHEN isfinite(us) AND us >= 0 THEN us END AS us, coalesce(ok, true) AS ok, "count" AS batched
FROM event
WHERE event IN ('register.local', 'register.batch', 'deregister.local', 'register.window', 'deregister.window');
