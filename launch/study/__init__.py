"""The study of n*(C) on the embedded policy, which docs/study.md reports."""
