"""The experiments of the paper, run again, and a report that sets them beside the paper's numbers.

    python -m benchmarks.paper [--quick] [--data ../shared/data] [--sets mujoco1 kuka]
                               [--systems svdgp svi] [--outputs 1 9] [--seeds 0] [--together 2]
                               [--size paper-rows] [--kuka1 FOLDER] [--kuka2 FOLDER] [--out out/paper.jsonl]
    python -m benchmarks.paper --report out/paper [--quick] [--out out/paper.jsonl]

90 rows of 100 are learnt from, the rest test; 2,000 minibatches of 1,024 rows, N_Δ = 128; SVDGP with
M_α = 16,384 and M_β = 128, SVI with 1,024 functions, iVSGPR with 256, VSGPR with 1,024 on 4,096 rows,
GPR on 1,024 rows; γ_0 of 0.1, 0.01 and 0.001, and which distances the first length-scales are, by the
bound after 100 iterations; a model per output.
Beside them, in the time that SVDGP took, our defaults, GPyTorch's SVGP and boosting with a search; and
boosting and a linear fit as they come. `--size paper-rows` has first length-scales by the distance between
rows alone, and SVDGP with γ_0 = 0.1 too.
With `--together 2` two outputs are learnt at a time, each on half of the cores.
Every result is a line of the results file; what is there already is not run again. The report is written
from that file alone and runs none of the experiments (it draws figure 1 once).
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.paper.data import SETS, Sources
from benchmarks.paper.jobs import measure, run, run_together, wanted
from benchmarks.paper.protocol import PROTOCOLS
from benchmarks.paper.records import Records
from benchmarks.paper.report import write_report
from benchmarks.paper.systems import SYSTEMS
from benchmarks.processes import measure_apart, shares_of_cores


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--kuka1", type=Path, help="the published files of KUKA1")
    parser.add_argument("--kuka2", type=Path, help="the published files of KUKA2")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), help="default: all with files")
    parser.add_argument(
        "--systems", nargs="+", choices=list(SYSTEMS), help="default: those of the size"
    )
    parser.add_argument("--outputs", type=int, nargs="+", help="from 1; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        help="outputs at a time, each on its share of the cores (default: 1)",
    )
    parser.add_argument("--size", default="paper", choices=list(PROTOCOLS))
    parser.add_argument("--quick", action="store_const", const="quick", dest="size")
    parser.add_argument("--out", type=Path, default=Path("out/paper.jsonl"))
    parser.add_argument("--report", type=Path, help="write the report into this folder instead")
    return parser.parse_args()


def main() -> int:
    """Run what is missing, or write the report."""
    options = arguments()
    protocol, records = PROTOCOLS[options.size], Records(options.out)
    if options.report:
        for path in write_report(records, protocol, options.report):
            print(path)
        return 0
    sources = Sources(options.data, options.kuka1, options.kuka2)
    sets = options.sets or [name for name in protocol.sets if sources.has(name)]
    if not sets:
        print(f"no data in {options.data}; see docs/paper.md for how to make or get it")
        return 1
    print(f"{protocol.name}: {', '.join(sets)}; {describe()}", flush=True)
    systems, together = options.systems or protocol.systems, options.together
    jobs = wanted(sets, systems, options.outputs, options.seeds, protocol, together)
    learn = partial(measure, sources)
    if together == 1:
        problems = run(jobs, records, partial(measure_apart, learn) if protocol.apart else learn)
        return 1 if problems else 0
    try:
        shares = shares_of_cores(together)
    except ValueError as error:
        print(f"--together {together}: {error}")
        return 1
    measures = [partial(measure_apart, learn, cores=cores) for cores in shares]
    return 1 if run_together(jobs, records, measures) else 0


if __name__ == "__main__":
    sys.exit(main())
