"""The ends of the chains of those who wait: processes are numbers here, and of a wait it matters who is missing.

The audit asks it about calls that were logged, and a rehearsal about those in which ranks wait now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Waiting = Mapping[int, Sequence[Sequence[int]]]  # of each process that waits, who is missing in each of its calls


def ends(waiting: Waiting) -> list[list[int]]:
    """Return the ends of the chains: one who waits for nobody, or some who wait for each other only."""
    found = [
        each for each, leads_on in _chained(waiting) if not leads_on and (len(each) > 1 or not waiting.get(each[0]))
    ]
    return sorted(found, key=lambda each: (len(each) > 1, each))


def go_on(left: Waiting, released: Collection[int]) -> bool:
    """Whether nobody has to wait for ever.

    Nobody waits for each other, and the chains end at processes that went on, and call more than was seen.
    """
    return all(len(each) == 1 and (leads_on or each[0] in released) for each, leads_on in _chained(left))


def breaking(circle: Sequence[int], waiting: Waiting) -> list[int]:
    """Return who of some who wait for each other can be the only one that is wrong: the others would go on."""
    return [
        one
        for one in circle
        if go_on(
            {each: [[m for m in its if m != one] for its in waiting[each]] for each in circle if each != one}, circle
        )
    ]


def _chained(waiting: Waiting) -> list[tuple[list[int], bool]]:
    """Return those who wait for each other, also one alone, and whether they wait for others besides."""
    # A node is a process, or all who did not come to a call: very many may wait for the same.
    calls = {-1 - id(missing): missing for its in waiting.values() for missing in its}
    graph: dict[int, list[int]] = {node: list(missing) for node, missing in calls.items()}
    graph |= {each: [] for each in sorted({each for missing in calls.values() for each in missing})}
    graph |= {number: [-1 - id(missing) for missing in its if missing] for number, its in waiting.items()}
    groups = _groups(graph)
    where = {node: place for place, group in enumerate(groups) for node in group}
    return [
        (each, any(where[other] != place for node in group for other in graph[node]))
        for place, group in enumerate(groups)
        if (each := sorted(node for node in group if node >= 0))
    ]


def _groups(graph: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the nodes that reach each other (Tarjan's algorithm, without recursion)."""
    found: list[list[int]] = []
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for start in graph:
        ways = [] if start in index else [(start, iter(graph[start]))]
        while ways:
            node, further = ways[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for other in further:
                if other not in index:
                    ways.append((other, iter(graph[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                ways.pop()
                if ways:
                    low[ways[-1][0]] = min(low[ways[-1][0]], low[node])
                if low[node] == index[node]:
                    at = len(stack) - 1
                    while stack[at] != node:
                        at -= 1
                    found.append(stack[at:])
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return found
