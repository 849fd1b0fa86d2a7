"""The same program on stock SQLite and on Duralite: what stock survives, Duralite has to survive."""
