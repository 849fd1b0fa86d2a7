//! The codec as a whole.
