use std::process::ExitCode;

use clap::Args;

use crate::output::print;
use crate::reference::Page;

/// Prints a page of the reference
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which page
    page: Page,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    print(&arguments.page.to_markdown())?;
    Ok(ExitCode::SUCCESS)
}
