"""What this machine can do: bytes read per second from memory, and multiply-adds per second.

    python benchmarks/ruler.py [--threads N] [--mib 1024] [--json]

The limits that speeds are held against: decode reads every weight once per token, a prompt
multiplies.  The same ruler as `lanewise bench` uses (`lanewise.runtime.ruler`): 8 streams a thread
over 2 MiB pages; f32 multiply-adds, dot products of bytes and of 16-bit words.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))


def main() -> None:
    from lanewise.runtime import ruler

    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--threads", type=int, help="default: one for each core")
    p.add_argument("--mib", type=int, default=1024, help="what is read: far more than the caches")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    told = ruler.measure(args.threads, nbytes=args.mib << 20).record()
    if args.json:
        print(json.dumps(told))
    else:
        print(f"{told['threads']} threads, {told['isa']}: read {told['read']} GB/s, "
              f"clock {told['clock']} GHz")  # fmt: skip
        for kind in ruler.KINDS:
            each = told[kind] / told["clock"] / told["threads"] if told["clock"] else 0.0
            print(f"{told[kind]} x 10^9 multiply-adds a second ({kind}), "
                  f"{each:.1f} a cycle of a core")  # fmt: skip


if __name__ == "__main__":
    main()
