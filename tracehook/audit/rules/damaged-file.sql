-- severity: error
-- sentence: A file could not be read to its end, or has lines that are no events.
-- advice: Copy the file once more from the host that wrote it; if it is damaged there too, look at the disk.
-- divergence: never
-- Before what follows from it: events that are missing, ranks that are.
SELECT process, [rank] AS ranks, NULL AS comm, coalesce(last_ns, 0) AS ns, NULL AS seq,
       format('{}: {}', who(rank, process), complaint) AS message
FROM process WHERE complaint != ''
UNION ALL
SELECT process, [rank], NULL, coalesce(gap.ns, last_ns, 0), NULL,
       format('{}: {} of {} {}: {} {}{}', who(rank, process), plural(foreign_lines, 'line'), file,
              CASE foreign_lines WHEN 1 THEN 'is no event' ELSE 'are no events' END,
              CASE foreign_lines WHEN 1 THEN 'line' ELSE 'lines' END, foreign_at,
              CASE WHEN foreign_lines > 5 THEN ', ...' ELSE '' END)
FROM process LEFT JOIN gap USING (process) WHERE foreign_lines > 0
UNION ALL
SELECT NULL, [], NULL, 0, NULL, message FROM unreadable;
