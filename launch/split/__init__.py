"""Sorts problems into strata by how often a policy solves them."""
