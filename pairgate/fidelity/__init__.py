"""Is the output the target's own? (docs/fidelity.md)

`compare_outputs` is level F1: what the arms wrote, side by side. `law_tests` are F2 and F3: every
emitted token against the law that it should come from, which a scorer (`ports.Scorer`) looked up.
"""

from __future__ import annotations

from pairgate.fidelity.law import at_alpha, law_tests
from pairgate.fidelity.outputs import compare_outputs, white_box

__all__ = ["at_alpha", "compare_outputs", "law_tests", "white_box"]
