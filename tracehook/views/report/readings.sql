-- All series read at the same moments, the ends of equal spans of the job; NULL before a process began and after its last sign of life.

CREATE OR REPLACE TEMP TABLE reading AS
WITH moved AS (
    SELECT place, series, least(greatest(ceil((ns - getvariable('from_ns'))::DOUBLE * getvariable('bins') / getvariable('span_ns'))::BIGINT - 1, 0),
                                getvariable('bins') - 1) AS bin, sum(delta) AS delta
    FROM change GROUP BY ALL),
grid AS (
    SELECT place, series, bin,
           getvariable('from_ns') + (bin + 1)::DOUBLE * getvariable('span_ns') / getvariable('bins') AS until_ns,
           getvariable('from_ns') + bin::DOUBLE * getvariable('span_ns') / getvariable('bins') AS from_ns
    FROM place, (VALUES ('held'), ('registered'), ('window'), ('pool'), ('idle'), ('live')) series (series),
         range(getvariable('bins')) bins (bin)),
level AS (
    SELECT grid.*, sum(coalesce(delta, 0)) OVER (PARTITION BY place, series ORDER BY bin ROWS UNBOUNDED PRECEDING) AS value
    FROM grid LEFT JOIN moved USING (place, series, bin)),
wide AS (
    SELECT place, bin,
           any_value(from_ns) AS from_ns, any_value(until_ns) AS until_ns,
           max(value) FILTER (series = 'held') AS held, max(value) FILTER (series = 'registered') AS registered,
           max(value) FILTER (series = 'window') AS "window", max(value) FILTER (series = 'pool') AS pool,
           max(value) FILTER (series = 'idle') AS idle, max(value) FILTER (series = 'live') AS live
    FROM level GROUP BY place, bin),
spent AS (
    SELECT place, least(greatest(ceil((ns - getvariable('from_ns'))::DOUBLE * getvariable('bins') / getvariable('span_ns'))::BIGINT - 1, 0),
                        getvariable('bins') - 1) AS bin, sum(us) / 1000 AS ms
    FROM call JOIN place USING (process, device) GROUP BY ALL)
SELECT place, bin, held, registered, "window", pool, idle,
       CASE WHEN live > 0 THEN greatest(held - registered, 0) ELSE 0 END AS missing, coalesce(ms, 0) AS ms
FROM wide LEFT JOIN spent USING (place, bin) JOIN place USING (place)
WHERE until_ns >= first_ns AND from_ns <= gone_ns;
