//! `duralite chart`: draws measurements as SVG and PNG.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;

use duralite_cli::output::print_text;

#[derive(Args)]
pub(crate) struct Options {
    /// A directory with the files of `bench --csv`, or one CSV file whose first column names bars
    #[arg(value_name = "DIR|FILE")]
    source: PathBuf,
    /// For one file: the picture to write; ends in .svg or .png [default: beside the file, ending in .svg]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// For one file: the title of the picture [default: the file's name]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// For one file: use a logarithmic scale
    #[arg(long)]
    log: bool,
    /// Write a PNG beside each SVG, twice as wide and as high in pixels
    #[arg(long, conflicts_with = "output")]
    png: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let drawn = if options.source.is_dir() {
        ensure!(
            options.output.is_none() && options.title.is_none() && !options.log,
            "--output, --title and --log are for one file; {} is a directory",
            options.source.display()
        );
        let drawn = duralite_chart::draw_known_in(&options.source)?;
        ensure!(!drawn.is_empty(), "{} has no table that can be drawn", options.source.display());
        drawn
    } else {
        vec![draw_one(&options.source, options)?]
    };
    for path in drawn {
        print_text(&format!("{}\n", path.display()))?;
        if options.png {
            print_text(&format!("{}\n", duralite_chart::png_beside(&path)?.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn draw_one(source: &Path, options: &Options) -> Result<PathBuf> {
    let path = options.output.clone().unwrap_or_else(|| source.with_extension("svg"));
    let name = || source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    duralite_chart::draw_table(source, &path, &options.title.clone().unwrap_or_else(name), options.log)?;
    Ok(path)
}
