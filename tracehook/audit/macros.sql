-- How messages say things. `in_bytes` is log/text.py's exact form.

CREATE OR REPLACE MACRO in_bytes(n) AS CASE
    WHEN n IS NULL THEN '? bytes'
    WHEN n >= 1099511627776 AND n % 1099511627776 = 0 THEN format('{} TiB', n // 1099511627776)
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

-- The global rank of a communicator's rank; its own number if neither its log nor its group tells.
CREATE OR REPLACE MACRO global_rank(the_comm, its_rank) AS coalesce(
    (SELECT min(c.rank) FROM communicator c WHERE c.comm = the_comm AND c.comm_rank = its_rank),
    (SELECT g.members[its_rank + 1] FROM communicator_group g WHERE g.comm = the_comm), its_rank);

-- A communicator's rank: 'rank 5', or 'rank 5 (1 of tp_1)' where its group counts otherwise.
CREATE OR REPLACE MACRO member(the_comm, its_rank) AS format('rank {}', global_rank(the_comm, its_rank)) || coalesce(
    (SELECT format(' ({} of {})', its_rank, g.name) FROM communicator_group g
     WHERE g.comm = the_comm AND g.members[its_rank + 1] != its_rank), '');

-- 'group tp_1 (communicator 43875d59c706ba92; ranks 4, 5)'; without a group of torch 'communicator 43875d59c706ba92'
CREATE OR REPLACE MACRO group_of(the_comm) AS coalesce(
    (SELECT format('group {} (communicator {}{})', g.name, g.comm, coalesce('; ' || rank_list(nullif(g.members, [])), ''))
     FROM communicator_group g WHERE g.comm = the_comm),
    'communicator ' || the_comm);

-- '43875d59c706ba92 (group tp_1)', for lists
CREATE OR REPLACE MACRO key_of(the_comm) AS the_comm || coalesce(
    (SELECT format(' (group {})', g.name) FROM communicator_group g WHERE g.comm = the_comm), '');

CREATE OR REPLACE MACRO in_seconds(ns) AS format('{:.3f} s', ns / 1e9);

-- Where a buffer lay: 'window 1 at byte 0 (segment 2 of our pools at 0x7e.., 32 MiB)'.
CREATE OR REPLACE MACRO buffer_of(the_process, the_comm_id, its_window, its_offset, the_seq) AS CASE
    WHEN its_window IS NULL THEN 'outside of all windows'
    WHEN its_window = 'overrun' THEN 'beginning in a window and ending outside it'
    ELSE format('in window {} at byte {}', its_window, its_offset) || coalesce(
        (SELECT arg_max(format(' ({} at {}, {})', CASE WHEN r.memory < 0 THEN 'memory of the program'
                 ELSE format('pool segment {}', r.memory) END, r.addr, in_bytes(r.size)), r.made_seq)
         FROM registration r WHERE r.process = the_process AND r.comm_id = the_comm_id AND r.kind = 'window'
         AND r.ordinal = try_cast(its_window AS BIGINT) AND r.made_seq < the_seq), '') END;

-- Where the buffers of an event placement.first_use lay, and which settings the call had.
CREATE OR REPLACE MACRO use_of(e) AS (CASE
    WHEN e.send_window IS NOT DISTINCT FROM e.receive_window AND e.send_offset IS NOT DISTINCT FROM e.receive_offset
    THEN buffer_of(e.process, e.comm_id, e.send_window, e.send_offset, e.seq)
    ELSE format('from {}, to {}', buffer_of(e.process, e.comm_id, e.send_window, e.send_offset, e.seq),
                buffer_of(e.process, e.comm_id, e.receive_window, e.receive_offset, e.seq)) END
    || coalesce(', with configuration ' || e.config, ''));

-- 'segment 4 of peer 1 (32 MiB)', of a row of table mapping; allocations of the driver have no number
CREATE OR REPLACE MACRO peer_memory(m) AS
    format('{} of peer {} ({})', CASE WHEN m.memory IS NULL THEN m.kind ELSE m.kind || ' ' || m.memory END, m.peer, in_bytes(m.size));

-- 'NCCL error 3 (internal error)'
CREATE OR REPLACE MACRO nccl_error(number) AS format('NCCL error {}', number) || coalesce(
    ' (' || ['unhandled CUDA error', 'unhandled system error', 'internal error', 'invalid argument', 'invalid usage',
             'remote process exited, or network error', 'in progress'][number] || ')', '');

-- What a rule returns of facts of the first lines that differ: of each, in the largest communicator in which it does. The text of
-- a program is compared with others of the same path: a trainer and a server may share a communicator.
CREATE OR REPLACE MACRO unlike(names) AS TABLE
WITH told AS (
    SELECT process, rank, argv, what, value FROM (FROM process WHERE communicators > 0)
    UNPIVOT INCLUDE NULLS (value FOR what IN (tracehook, torch, cuda, nccl, allocator, policy, local, segments, segment_memory, guard, integrations, python, driver, program))
    WHERE list_contains(names, what)),
named AS (
    SELECT * REPLACE (CASE what WHEN 'program' THEN format('the text of {}|{}', argv, value[:8]) ELSE what END AS what,
                      CASE what WHEN 'program' THEN value[-8:] ELSE value END AS value)
    FROM told WHERE what != 'program' OR value IS NOT NULL),
-- What is alike in the whole job is alike in each of its communicators.
unlike AS (
    SELECT what FROM named GROUP BY what HAVING count(DISTINCT value) + CASE WHEN count(value) < count(*) THEN 1 ELSE 0 END > 1),
kind AS (
    SELECT comm, what, coalesce(value, 'unknown') AS value, list(named.rank ORDER BY named.rank) AS ranks, count(*) AS n,
           CASE WHEN count(named.rank) = count(*) THEN rank_list(list(named.rank ORDER BY named.rank))
                ELSE plural(count(*), 'process') END AS whom
    FROM named SEMI JOIN unlike USING (what) JOIN (SELECT DISTINCT process, comm FROM communicator) USING (process) GROUP BY comm, what, value),
difference AS (
    SELECT comm, what, sum(n) AS size, arg_min(ranks, n) AS odd,
           string_agg(format('{} on {}', CASE value WHEN '' THEN 'unset' ELSE value[:80] END, whom), '; ' ORDER BY n DESC, value) AS told
    FROM kind GROUP BY comm, what HAVING count(*) > 1)
SELECT NULL AS process, arg_max(odd, (size, comm)) AS ranks, NULL AS comm, 0 AS ns, NULL AS seq,
       format('{} is {}', split_part(what, '|', 1), arg_max(told, (size, comm))) AS message
FROM difference GROUP BY what;
