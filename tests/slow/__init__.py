"""Tests of minutes: kills, hosts, torch, the coverage of intervals.

  python -m pytest tests/slow
  python -m pytest tests/slow -m ci
"""
