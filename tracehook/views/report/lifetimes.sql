-- Spans of the memories of one place (getvariable('place')): from one change of who holds them to the next.
-- `state`: held (by the communicators in `held_by`), missing (none, though one was ready), none (no communicator lived), idle (in the bank).

CREATE OR REPLACE TEMP TABLE bar AS
WITH here AS (FROM place WHERE place = getvariable('place')),
life AS (
    SELECT 'local' AS kind, segment AS memory, NULL AS pool, addr, size, born_ns, freed_ns FROM segment JOIN here USING (process, device)
    UNION ALL
    SELECT 'window', pool_segment, pool, addr, size, born_ns, freed_ns FROM pool_segment JOIN here USING (process, device))
SELECT kind, memory, pool, CASE WHEN regexp_full_match(addr, '0x[0-9a-f]{1,16}') THEN addr ELSE '?' END AS addr, size,
       greatest(born_ns, here.first_ns) AS born_ns, least(coalesce(freed_ns, here.gone_ns), here.gone_ns) AS gone_ns,
       freed_ns IS NOT NULL AS freed, count(*) OVER (PARTITION BY kind) AS bars
FROM life, here WHERE born_ns IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY kind ORDER BY size::DOUBLE * (gone_ns - born_ns) DESC, memory) <= getvariable('most_bars');

CREATE OR REPLACE TEMP TABLE span AS
WITH here AS (FROM place WHERE place = getvariable('place')),
hold AS (
    SELECT kind, memory, comm, made_ns AS from_ns, coalesce(undone_ns, here.gone_ns) AS until_ns
    FROM registration JOIN here USING (process, device)),
rest AS (
    SELECT pool_segment AS memory, event, ns AS from_ns,
           coalesce(lead(ns) OVER (PARTITION BY pool_segment ORDER BY seq), here.gone_ns) AS until_ns
    FROM event JOIN here USING (process, device) WHERE event IN ('segment.retire', 'segment.reuse', 'pool.shrink')),
alive AS (
    SELECT ready_ns AS from_ns, coalesce(least(ended_ns, failed_ns), here.gone_ns) AS until_ns
    FROM communicator JOIN here USING (process, device) WHERE ready_ns IS NOT NULL),
cut AS (
    SELECT kind, memory, born_ns AS ns FROM bar UNION SELECT kind, memory, gone_ns FROM bar
    UNION SELECT kind, memory, from_ns FROM hold UNION SELECT kind, memory, until_ns FROM hold
    UNION SELECT 'window', memory, from_ns FROM rest UNION SELECT 'window', memory, until_ns FROM rest
    UNION SELECT 'local', memory, from_ns FROM alive, bar WHERE kind = 'local'
    UNION SELECT 'local', memory, until_ns FROM alive, bar WHERE kind = 'local'),
piece AS (
    SELECT kind, memory, cut.ns AS from_ns, lead(cut.ns) OVER (PARTITION BY kind, memory ORDER BY cut.ns) AS until_ns
    FROM cut JOIN bar USING (kind, memory) WHERE cut.ns BETWEEN born_ns AND gone_ns),
owned AS (
    SELECT piece.kind, piece.memory, piece.from_ns, list_sort(list(DISTINCT hold.comm)) AS held_by
    FROM piece JOIN hold ON hold.kind = piece.kind AND hold.memory = piece.memory
     AND hold.from_ns <= piece.from_ns AND hold.until_ns >= piece.until_ns
    GROUP BY ALL),
resting AS (
    SELECT DISTINCT piece.memory, piece.from_ns
    FROM piece JOIN rest ON rest.memory = piece.memory AND event = 'segment.retire'
     AND rest.from_ns <= piece.from_ns AND rest.until_ns >= piece.until_ns
    WHERE kind = 'window'),
lived AS (
    SELECT DISTINCT piece.memory, piece.from_ns
    FROM piece JOIN alive ON alive.from_ns <= piece.from_ns AND alive.until_ns >= piece.until_ns WHERE kind = 'local'),
told AS (
    SELECT kind, memory, from_ns, until_ns, held_by,
           CASE WHEN kind = 'window' AND resting.from_ns IS NOT NULL THEN 'idle'
                WHEN held_by IS NOT NULL THEN 'held'
                WHEN lived.from_ns IS NOT NULL THEN 'missing' ELSE 'none' END AS state
    FROM piece LEFT JOIN owned USING (kind, memory, from_ns) LEFT JOIN resting USING (memory, from_ns)
         LEFT JOIN lived USING (memory, from_ns)
    WHERE until_ns > piece.from_ns),
-- Between a birth and its registration lie microseconds, which no picture can show. A memory keeps its longest span in any case.
seen AS (
    FROM told
    QUALIFY until_ns - from_ns >= getvariable('shortest_ns')
         OR row_number() OVER (PARTITION BY kind, memory ORDER BY until_ns - from_ns DESC) = 1),
turn AS (
    SELECT *, lag(state) OVER w IS DISTINCT FROM state OR lag(held_by) OVER w IS DISTINCT FROM held_by
              OR lag(until_ns) OVER w < from_ns - 4 * getvariable('shortest_ns') AS new
    FROM seen WINDOW w AS (PARTITION BY kind, memory ORDER BY from_ns)),
run AS (SELECT *, sum(new::INTEGER) OVER (PARTITION BY kind, memory ORDER BY from_ns) AS run FROM turn)
SELECT kind, memory, any_value(state) AS state, any_value(held_by) AS held_by, min(from_ns) AS from_ns, max(until_ns) AS until_ns
FROM run GROUP BY kind, memory, run
QUALIFY row_number() OVER (PARTITION BY kind ORDER BY max(until_ns) - min(from_ns) DESC) <= getvariable('most_spans')
ORDER BY kind, memory, from_ns;
