use std::process::ExitCode;

use clap::Args;

use crate::cli::Global;
use crate::stderr::print_message;

/// Brings the store's schema up to date; makes the store where there is none
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate migrate --store sqlite:tasks.db")]
pub(crate) struct Arguments {}

pub(crate) async fn run(global: &Global) -> anyhow::Result<ExitCode> {
    super::open_to_write(global).await?;
    print_message!("{} is up to date", global.display_url());
    Ok(ExitCode::SUCCESS)
}
