-- severity: error
-- sentence: In a rehearsal, ranks waited for a rank that did not come, and the rehearsal ended the job.
-- advice: Look at what the rank that did not come did instead, or left out before; for a rank that is only slow, raise --hang-timeout.
-- divergence: always
-- needs: rehearsal.hang
-- The sentence is the rehearsal's own, which knows the keys of communicators; the logs of the ranks know the groups
-- if the program gave the communicator no name.
WITH named AS (SELECT list({'key': 'communicator ' || comm, 'name': ' (group ' || name || ')'}) AS all_named FROM communicator_group)
SELECT NULL AS process, involved AS ranks, comm, ns, seq,
       list_reduce(list_prepend({'key': sentence, 'name': ''}, coalesce(all_named, [])),
                   lambda told, it: {'key': replace(replace(told.key, it.key, it.key || it.name), it.name || ', group ', ', group '),
                                         'name': ''}).key AS message
FROM event, named WHERE event = 'rehearsal.hang';
