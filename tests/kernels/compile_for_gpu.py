"""Compiles every kernel for a GPU that is not here (sm_90), and prints one line for each.

Run in a process of its own, without TRITON_INTERPRET: what the interpreter accepts the compiler
may refuse.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pairgate_kernels.overlap import triton as overlap
from pairgate_kernels.sample import triton as sample
from pairgate_kernels.verify import triton as verify

TYPES = {
    "*fp32": "scales peaks seconds totals numbers draft_numbers margin full top_p log_min_p "
    "kept rest common terms",
    "*i64": "best draft_best top_k at draft_at draft_tokens tokens draft_target",
    "*i32": "firsts broken passed",
    "*i1": "bad cut",
    "*fp64": "uniforms",
    "i64": "stride draft_stride",
    "i32": "vocab blocks",
}
TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names.split()}
WIDE = {"BLOCK": 8192}
SEARCH = {"VOCAB": 151_936, "BLOCK": 512}
KERNELS: tuple[tuple[Any, str, dict[str, Any]], ...] = (
    (sample._block_stats, "*bf16", WIDE),
    (sample._combine, "*bf16", {"BLOCKS": 32}),
    (sample.truncate, "*bf16", {**SEARCH, "SPARE": 16}),
    (sample.truncate, "*fp16", {**SEARCH, "SPARE": 12}),
    (sample.truncate, "*fp32", {**SEARCH, "SPARE": 0}),
    *((sample._masses, "*bf16", {**WIDE, "DRAFT": mode}) for mode in range(3)),
    *((sample._draw, "*bf16", {**WIDE, "BLOCKS": 32, "DRAFT": mode}) for mode in range(3)),
    *((verify._test, "*bf16", {"ONE_HOT": one_hot}) for one_hot in (False, True)),
    (overlap._agreement, "*bf16", WIDE),
)


def main() -> None:
    target, options = GPUTarget("cuda", 90, 32), {"num_warps": sample.N_WARPS}
    for kernel, dtype, constants in KERNELS:
        kinds = {**TYPE_OF, "logits": dtype, "draft_logits": dtype}
        signature = {n: "constexpr" if n in constants else kinds[n] for n in kernel.arg_names}
        places = {(kernel.arg_names.index(n),): value for n, value in constants.items()}
        compiled = triton.compile(ASTSource(kernel, signature, places), target, options)
        sys.stdout.write(f"{kernel.__name__} {len(compiled.asm['cubin'])}\n")


if __name__ == "__main__":
    main()
