"""The batched decoder on the Triton kernels, as on a GPU: it keeps logits, not laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import build, loaded, prompts, request, run

from pairgate.engines.native import passes
from pairgate_kernels import dispatch


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_the_decoder_on_triton_equals_itself_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    target, noisy = build(seed=1), build(seed=1)
    with torch.no_grad():
        noisy.lm_head.weight += torch.randn_like(noisy.lm_head.weight) * 0.35
    models = loaded(target), loaded(noisy, "draft")
    samplings = ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3},
                 {"temperature": 1.2, "top_k": 9, "top_p": 0.9})  # fmt: skip
    requests = [
        request(i, p, max_tokens=8, **s)
        for i, (p, s) in enumerate(zip(prompts(3), samplings, strict=True))
    ]
    wanted = run(*models, requests)
    monkeypatch.setattr(dispatch, "fused", lambda logits: True)
    monkeypatch.setattr(passes, "fused", lambda logits: True)
    with np.errstate(all="ignore"):  # the interpreter's NumPy warns about exp(−inf − −inf)
        found = run(*models, requests)
    for one, other in zip(found, wanted, strict=True):
        assert one.error == ""
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.accepted.tolist() == other.accepted.tolist()
        np.testing.assert_allclose(one.overlap, other.overlap, atol=1e-5)
    assert sum(t.accepted.sum() for t in found) > 0
