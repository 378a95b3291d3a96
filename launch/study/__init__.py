"""The study: how should a run end? docs/study.md is made from its ledger."""
