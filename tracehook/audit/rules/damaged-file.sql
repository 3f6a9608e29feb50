-- severity: error
-- sentence: A file could not be read to its end, or has lines that are no events.
SELECT process, [rank] AS ranks, NULL AS comm, NULL AS ns, NULL AS seq,
       format('{}: {}', who(rank, process), complaint) AS message
FROM process WHERE complaint != ''
UNION ALL
SELECT process, [rank], NULL, NULL, NULL,
       format('{}: {} of {} are no events: line {}{}', who(rank, process), plural(foreign_lines, 'line'), file, foreign_at,
              CASE WHEN foreign_lines > 5 THEN ', ...' ELSE '' END)
FROM process WHERE foreign_lines > 0
UNION ALL
SELECT NULL, [], NULL, NULL, NULL, message FROM unreadable;
