"""Nightly results kept in one file, and the change points over them."""
