-- Each measure over all places. Far: more than six times the usual distance from the median, and than a tenth of the median.
WITH peak AS (
    SELECT place, series, max(level) AS level FROM change GROUP BY ALL),
spent AS (
    SELECT place, sum(us) AS us, max(us) FILTER (event != 'register.batch') AS slowest,
           count(*) FILTER (verb = 'register' AND event != 'register.batch' AND ok) AS made,
           count(*) FILTER (NOT ok) AS failed
    FROM call JOIN place USING (process, device) GROUP BY place),
measure AS (
    SELECT place, said AS events, coalesce(us, 0) AS us, coalesce(slowest, 0) AS slowest, coalesce(made, 0) AS made,
           coalesce(failed, 0) AS failed,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'held'), 0) AS held,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'window'), 0) AS in_windows,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'pool'), 0) AS pool,
           coalesce((SELECT level FROM peak WHERE peak.place = place.place AND series = 'idle'), 0) AS idle,
           coalesce((SELECT max(missing) FROM reading WHERE reading.place = place.place), 0) AS missing,
           (last_ns - first_ns) / 1000 AS lasted,
           (SELECT count(*) FROM communicator c WHERE c.process = place.process AND c.device = place.device) AS communicators
    FROM place LEFT JOIN spent USING (place)),
long AS (
    UNPIVOT (SELECT place, COLUMNS(* EXCLUDE (place))::DOUBLE FROM measure)
    ON COLUMNS(* EXCLUDE (place)) INTO NAME measure VALUE value),
middle AS (SELECT measure, median(value) AS mid, min(value) AS low, max(value) AS high FROM long GROUP BY measure),
width AS (SELECT measure, median(abs(value - mid)) AS mad FROM long JOIN middle USING (measure) GROUP BY measure)
SELECT measure, any_value(mid) AS mid, any_value(low) AS low, any_value(high) AS high,
       list({'place': place, 'value': value} ORDER BY abs(value - mid) DESC, place)
           FILTER (abs(value - mid) > greatest(6 * mad, 0.1 * abs(mid))) AS far
FROM long JOIN middle USING (measure) JOIN width USING (measure) GROUP BY measure
