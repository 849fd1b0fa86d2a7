"""Runs other people's tests on stock SQLite and on Duralite, and compares them test by test."""
