mod disk;
mod rings;
