-- severity: warning
-- sentence: A pool policy raised an error and was skipped.
-- advice: Mend the policy, or its name in SYMM_REGISTER_POLICY: the job's stderr has the error, and help(tracehook.policies.Answer) what a policy may return.
-- divergence: never
-- needs: policy.failed
SELECT process, [rank] AS ranks, NULL AS comm, min(ns) AS ns, min(seq) AS seq,
       format('{}: a policy failed {} and was skipped; its error stands in the job''s stderr', who(rank, process),
              CASE count(*) WHEN 1 THEN 'once' ELSE format('{} times', count(*)) END) AS message
FROM event WHERE event = 'policy.failed' GROUP BY process, rank;
