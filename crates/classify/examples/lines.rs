//! Reads error descriptions from standard input, a line of JSON each, and prints verdicts.
//!
//! `echo '{"status":529}' | cargo run -p steadfast-classify --example lines`

use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        match steadfast_classify::json::line(&line?) {
            Ok(verdict) => writeln!(out, "{verdict}")?,
            Err(error) => eprintln!("{error}"),
        }
    }
    Ok(())
}
