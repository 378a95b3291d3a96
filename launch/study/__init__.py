"""The study of n*(C) on the embedded policy: docs/study.md says what it found."""
