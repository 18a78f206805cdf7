"""``tandem plan kv``: how much memory the KV cache of a model takes, for every profile, and what changes it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from build_engines.kv_plan import DEFAULT_BLOCK_SIZE, DTYPES, PRESETS, PROFILES, KvDemand, KvPlan, KvShape, plan, read_shape
from tandem_cli.command import Command

_GIB = 1 << 30


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    kv = actions.add_parser("kv", help="memory of the KV cache")
    kv.add_argument(
        "--model", required=True, metavar="PATH|PRESET", help=f"folder with config.json, or one of {', '.join(PRESETS)}"
    )
    kv.add_argument("--seq", type=int, required=True, metavar="N", help="tokens of one sequence, prompt and completion")
    kv.add_argument("--concurrency", type=int, required=True, metavar="N", help="sequences at once")
    kv.add_argument("--dtype", choices=DTYPES, default="f16", help="data type of the cache (default %(default)s)")
    kv.add_argument(
        "--block-size", type=int, default=DEFAULT_BLOCK_SIZE, metavar="N", help="tokens per block (default %(default)s)"
    )
    kv.add_argument("--shared-prefix", type=int, default=0, metavar="N", help="first tokens that all sequences share (default 0)")
    kv.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    kv.set_defaults(action=_plan_kv)


def _plan_kv(args: argparse.Namespace) -> int:
    shape = read_shape(args.model)
    demand = KvDemand(args.seq, args.concurrency, args.dtype, args.block_size, args.shared_prefix)
    plans = {profile: plan(shape, demand, profile) for profile in PROFILES}
    if args.json:
        found = {name: {"not_offered": each} if isinstance(each, str) else asdict(each) for name, each in plans.items()}
        sys.stdout.write(json.dumps({"shape": asdict(shape), "demand": asdict(demand), "profiles": found}) + "\n")
        return 0
    console = Console(highlight=False)
    console.print(_table(shape, demand, plans))
    for name, each in plans.items():
        for note in (each,) if isinstance(each, str) else each.notes:
            console.print(f"{name}: {note}.", markup=False)
    for line in _explanations(shape, demand):
        console.print(line, markup=False)
    return 0


def _table(shape: KvShape, demand: KvDemand, plans: dict[str, KvPlan | str]) -> Table:
    title = (
        f"{demand.concurrency} sequences of {demand.seq_len} tokens, {demand.dtype}: "
        f"{shape.num_layers} layers, {shape.num_kv_heads} KV heads of {shape.head_size}"
    )
    table = Table("profile", "bytes/token", "block", "blocks/sequence", "blocks", "bytes", "GiB", title=title)
    for name, each in plans.items():
        if isinstance(each, str):
            table.add_row(name, "not offered", "", "", "", "", "")
            continue
        table.add_row(
            name,
            f"{each.bytes_per_token:,.10g}",
            str(each.block_size),
            str(each.blocks_per_seq),
            f"{each.num_blocks:,}",
            f"{each.total_bytes:,}",
            f"{each.total_bytes / _GIB:.2f}",
        )
    return table


def _explanations(shape: KvShape, demand: KvDemand) -> list[str]:
    per_seq = -(-demand.seq_len // demand.block_size)
    lines = [
        f"Block size: a sequence takes whole blocks, here {per_seq} of {demand.block_size} tokens; on average half a block per "
        "sequence stays empty. Larger blocks waste more at the end and share prefixes more coarsely; compaction is never needed.",
    ]
    for profile in ("cpu", "trtllm"):
        half, full = (plan(shape, KvDemand(demand.seq_len, demand.concurrency, dtype), profile) for dtype in ("int8", "f16"))
        if isinstance(half, KvPlan) and isinstance(full, KvPlan):
            share = half.bytes_per_token / full.bytes_per_token
            lines.append(
                f"INT8 on {profile}: {share:.3f} of the bytes of f16, so {1 / share:.2f} times the tokens in the same memory."
            )
    lines.append(
        f"Prefix sharing: whole blocks of an equal beginning are held once. Shared prefix here: {demand.shared_prefix} tokens; "
        f"of the {demand.concurrency} sequences all but one save their full blocks (--shared-prefix N)."
    )
    return lines


def _run(args: argparse.Namespace) -> int:
    code: int = args.action(args)
    return code


COMMAND = Command("plan", "plan memory before building anything", _add_arguments, _run)
