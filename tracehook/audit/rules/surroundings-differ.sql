-- severity: warning
-- sentence: Ranks of a job that did not end well have another Python, or another driver of the GPUs, than others.
-- advice: If the trouble stays with these ranks, give their hosts what the others have; NCCL and PyTorch allow such a mixture.
-- divergence: never
SELECT * FROM unlike(['python', 'driver'])
WHERE EXISTS (FROM process WHERE (failed OR NOT ended AND NOT runs) AND rank IS NOT NULL AND NOT helper);
