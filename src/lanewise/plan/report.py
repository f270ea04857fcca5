"""`explain`: a plan as a table that a person reads."""

from __future__ import annotations

from lanewise.plan.plan import Launch, Plan


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


def explain(plan: Plan) -> str:
    """Summary, and a line for every launch; `|` marks a barrier after it."""
    lines = summary(plan)
    head = ("#", "kernel", "mode", "computes", "read", "written", "why")
    body = [
        (str(r["launch"]), str(r["kernel"]), str(r["mode"]), str(r["computes"]),
         size(int(r["read"])), size(int(r["written"])), str(r["why"]))
        for r in table(plan)
    ]  # fmt: skip
    widths = [max(len(row[c]) for row in (head, *body)) for c in range(len(head) - 1)]
    for row, stop in zip((head, *body), (False, *plan.barriers), strict=True):
        cells = (
            cell.rjust(w) if c in (0, 4, 5) else cell.ljust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=False))
        )
        lines.append("  ".join(cells) + "  " + row[-1])
        if stop:
            lines.append("-" * 8)
    return "\n".join(lines)
