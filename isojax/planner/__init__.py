"""From a budget to allocations and prices. Letters: those of isojax/core, and

  K  configurations (Bp, n)    N  tested n
"""
