"""Tests of the installed wheel. scripts/packages/python runs them outside the source tree."""
