-- severity: error
-- sentence: A peer did not come in time to share memory.
-- advice: See what the peer did instead: `tracehook report DIR`; if it was only slow, give PeerGroup a longer timeout.
-- divergence: always
-- needs: peer.timeout
SELECT process, [rank] AS ranks, comm, ns, seq,
       format('{} waited {} for rank {} of the peers {}, which did not come', who(rank, process), in_seconds(us * 1000), peer, comm) AS message
FROM event WHERE event = 'peer.timeout';
