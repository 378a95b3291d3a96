"""Figures, pages and texts. For letters, see isojax/frontier/__init__.py."""
