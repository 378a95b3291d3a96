"""The study: how should a run end? docs/study.md is made from its ledger.

`end` adds to the ledger, `verdicts` compares, `page` and `figure` show it.
"""
