-- How messages say things.

CREATE OR REPLACE MACRO in_bytes(n) AS CASE
    WHEN n IS NULL THEN '? bytes'
    WHEN n >= 1073741824 AND n % 1073741824 = 0 THEN format('{} GiB', n // 1073741824)
    WHEN n >= 1048576 AND n % 1048576 = 0 THEN format('{} MiB', n // 1048576)
    WHEN n >= 1024 AND n % 1024 = 0 THEN format('{} KiB', n // 1024)
    ELSE format('{} bytes', n) END;

-- A process, as a person would call it.
CREATE OR REPLACE MACRO who(rank, process) AS CASE
    WHEN rank IS NOT NULL THEN format('rank {}', rank)
    ELSE (SELECT coalesce(format('pid {}', p.pid), p.file) FROM process p WHERE p.process = process) END;

CREATE OR REPLACE MACRO plural(n, noun) AS format('{} {}{}', n, noun, CASE WHEN n = 1 THEN '' ELSE 's' END);

-- 'rank 3', 'ranks 1, 2, 3 and 12 more'
CREATE OR REPLACE MACRO rank_list(ranks) AS CASE
    WHEN len(ranks) = 1 THEN format('rank {}', ranks[1])
    WHEN len(ranks) <= 8 THEN 'ranks ' || array_to_string(list_sort(ranks), ', ')
    ELSE 'ranks ' || array_to_string(list_sort(ranks)[:8], ', ') || format(' and {} more', len(ranks) - 8) END;
