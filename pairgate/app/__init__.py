"""The use cases: the Python API of pairgate, a file per use case, and the only wiring.

workspace   where everything lies          setup      init
register    pairs into the registry        slices     logs into slices
evaluate    replay, measure, judge         release    promote, rollback, disable, enable
inspect     status, history, show          review     MLflow mirror and report
"""
