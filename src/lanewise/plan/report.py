"""`explain`: a plan as a table that a person reads."""

from __future__ import annotations

from lanewise.plan.plan import Launch, Plan
from lanewise.plan.repeats import repeats


def size(n: float) -> str:
    """Bytes with a unit: 1,536 B, 14.2 KiB, 1.3 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:,.0f} {unit}" if unit == "B" else f"{n:,.1f} {unit}"
        n /= 1024
    raise AssertionError


def _bytes(plan: Plan, launch: Launch) -> tuple[int, int]:
    read = sum(u.nbytes for u in launch.uses if not u.write)
    return read, sum(u.nbytes for u in launch.uses if u.write)


def summary(plan: Plan) -> list[str]:
    """One line per fact: launches, barriers, memory, rules."""
    m, graph = plan.memory, plan.graph
    lines = [
        f"form {graph.name}: {len(plan.launches)} launches, {sum(plan.barriers)} barriers, "
        f"{len(graph.nodes)} nodes",
        f"arena {size(m.allocated)} (without sharing {size(m.unshared)}, at least "
        f"{size(m.lower_bound)}); per thread {size(m.private)} private, {size(m.scratch)} scratch",
    ]
    for rule, count in plan.trace.fired.items():
        declined = plan.trace.declined.get(rule, {})
        why = "".join(f"; declined {n}: {reason}" for reason, n in declined.items())
        lines.append(f"rule {rule}: fired {count}{why}")
    lines += [f"rule {rule}: held" for rule in plan.trace.held]
    return lines


def table(plan: Plan) -> list[dict[str, str | int]]:
    """A row for every launch."""
    selections = dict(plan.selections)
    rows: list[dict[str, str | int]] = []
    for i, launch in enumerate(plan.launches):
        read, written = _bytes(plan, launch)
        s = selections[launch.node]
        rows.append({
            "launch": i, "phase": plan.phases[i], "kernel": launch.kernel
            if launch.kernel not in ("product", "rows") else s.kernel, "mode": launch.mode,
            "computes": launch.label, "why": s.why, "recipe": s.recipe, "read": read,
            "written": written, "barrier": int(plan.barriers[i]),
        })  # fmt: skip
    return rows


def explain(plan: Plan, *, every: bool = False) -> str:
    """Summary, and a line for every launch with a rule below it where a barrier stands; launches
    that repeat (equal layers) are shown once, unless `every` is asked for."""
    lines = summary(plan)
    head = ("#", "kernel", "mode", "computes", "read", "written", "why")
    body = [
        (str(r["launch"]), str(r["kernel"]), str(r["mode"]), str(r["computes"]),
         size(int(r["read"])), size(int(r["written"])), str(r["why"]))
        for r in table(plan)
    ]  # fmt: skip
    widths = [max(len(row[c]) for row in (head, *body)) for c in range(len(head) - 1)]

    def line(row: tuple[str, ...]) -> str:
        cells = (
            cell.rjust(w) if c in (0, 4, 5) else cell.ljust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=False))
        )
        return "  ".join(cells) + "  " + row[-1]

    lines.append(line(head))
    keys = [(row[1:], stop) for row, stop in zip(body, plan.barriers, strict=True)]
    for run in repeats(keys):
        for i in range(run.begin, run.begin + run.length * (run.count if every else 1)):
            lines.append(line(body[i]))
            if plan.barriers[i]:
                lines.append("-" * 8)
        if run.count > 1 and not every:
            last = run.begin + run.length * run.count - 1
            lines.append(f"  ... these {run.length} launches {run.count} times in all, to {last}")
    return "\n".join(lines)
