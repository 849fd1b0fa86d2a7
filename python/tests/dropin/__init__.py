"""The same program on stock SQLite and on Duralite: if stock SQLite survives it, Duralite has to
survive it."""
