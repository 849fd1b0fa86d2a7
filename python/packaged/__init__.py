"""Tests of the wheel as it is installed; scripts/packages/python runs them outside the source tree."""
