-- severity: error
-- sentence: A registration of windows was given up on all ranks, because it failed on one or the store did.
-- advice: Look at the finding registration-failed of the same moment, and at stderr of its rank; without one a rank raised inside its scope, and stderr of the others names it.
-- divergence: never
-- needs: agreement.failed
-- Where NCCL had no window for any rank, registration-without-effect says so: nothing failed.
WITH given_up AS (
    SELECT *, row_number() OVER (PARTITION BY process, comm_id ORDER BY seq) AS nth,
           (SELECT arg_max(coalesce(w.effective, true), w.seq) FROM event w
            WHERE w.process = event.process AND w.comm_id = event.comm_id AND w.event = 'register.window'
              AND w.seq < event.seq) AS had_effect
    FROM event WHERE event = 'agreement.failed')
SELECT NULL AS process, list(coalesce(rank, comm_rank) ORDER BY comm_rank) AS ranks, comm, min(ns) AS ns, NULL AS seq,
       format('{}: {} gave up a registration of windows', group_of(comm), rank_list(list(coalesce(rank, comm_rank) ORDER BY comm_rank))) ||
       -- Who raises inside a scope logs nothing of it.
       coalesce(format(', to which {} did not come', rank_list((
           SELECT list(coalesce(c.rank, c.comm_rank) ORDER BY c.comm_rank) FROM communicator c ANTI JOIN given_up USING (process, comm_id)
           WHERE c.comm = outermost.comm))), ' together') AS message
FROM given_up AS outermost GROUP BY comm, nth HAVING bool_or(coalesce(had_effect, true));
