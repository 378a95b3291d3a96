"""The study: how should a run end? Its page, docs/study.md, from its ledger.

`end` runs the registered experiments and adds lines to the ledger, `verdicts`
compares them, `page` and `figure` write the page.
"""
