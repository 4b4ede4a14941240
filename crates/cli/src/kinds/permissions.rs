//! What a worker lets its tasks do.

use clap::Args;

use super::{exec, http};
use crate::config::{Config, Key};

/// The flags that permit.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct PermissionArgs {
    /// Hosts that `http` may call, with commas between: api.example.com, *.example.com, * (every
    /// public host), 10.0.0.5, 10.0.0.0/8, each with :PORT if wanted; may be repeated [default:
    /// `http.allow` of the configuration; without any no `http` task is taken]
    #[arg(long, value_name = "HOST,..", value_delimiter = ',')]
    pub(crate) http_allow: Vec<String>,
    /// Commands that `exec` may start, with commas between: a path, or a name that is looked up
    /// once; may be repeated [default: `exec.allow` of the configuration; without any no `exec` task is taken]
    #[arg(long, value_name = "COMMAND,..", value_delimiter = ',')]
    pub(crate) exec_allow: Vec<String>,
}

impl PermissionArgs {
    /// What the flags say, and the configuration where they say nothing.
    pub(crate) fn permissions(&self, config: &Config) -> anyhow::Result<Permissions> {
        let list = |flag: &'_ [String], key| match flag.is_empty() {
            true => config.list(key).to_vec(),
            false => flag.to_vec(),
        };
        let http = list(&self.http_allow, Key::HttpAllow);
        Permissions::new(&http, &list(&self.exec_allow, Key::ExecAllow))
    }
}

/// What a worker lets its tasks do: nothing, unless it is listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Permissions {
    pub(super) http: http::AllowedHosts,
    pub(super) exec: exec::AllowedCommands,
}

impl Permissions {
    /// Reads both lists, and looks for the commands.
    pub(crate) fn new(http: &[String], exec: &[String]) -> anyhow::Result<Self> {
        Ok(Self { http: http::AllowedHosts::new(http)?, exec: exec::AllowedCommands::new(exec)? })
    }

    /// Whether a worker with these permissions has anything to do for a kind.
    pub(crate) fn allows_kind(&self, kind: &str) -> bool {
        match kind {
            "http" => !self.http.is_empty(),
            "exec" => !self.exec.is_empty(),
            _ => true,
        }
    }
}

/// The flag that a kind needs, with an example, if it needs one.
pub(crate) fn permission_flag(kind: &str) -> Option<[&'static str; 2]> {
    match kind {
        "http" => Some(["--http-allow", "HOST"]),
        "exec" => Some(["--exec-allow", "COMMAND"]),
        _ => None,
    }
}
