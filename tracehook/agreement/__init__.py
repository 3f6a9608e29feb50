"""How the ranks of a group compare what they are about to do. Knows no memory.

`agreement` is what others call. Below it: `rounds` (one rank's steps in one round), `verdicts` (what a round ends
with), `handshake` (what ranks compare first), `topology` (who takes part, and the keys), `store_worker` and
`store_session` (threads and connections to the c10d store), `watchdog` (ranks that wait ask, and those that know
answer).
"""
