"""From a budget to allocations and prices.

Letters: see isojax/core/__init__.py; those of arrays: isojax/types.py.
"""
