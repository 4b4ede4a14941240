//! Which commands `exec` may start: what `--exec-allow` lists.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The commands that may be started. None, unless one is listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllowedCommands {
    commands: Vec<AllowedCommand>,
}

/// A command as it was found when the worker began. What a folder of the `PATH` or a link says
/// later changes nothing.
#[derive(Debug, Clone)]
struct AllowedCommand {
    /// What a task may call it.
    names: [String; 2],
    /// The file, without links on the way.
    file: PathBuf,
}

impl AllowedCommands {
    pub(crate) fn new(list: &[String]) -> anyhow::Result<Self> {
        let command = |text: &String| {
            AllowedCommand::find(text.trim()).with_context(|| format!("read --exec-allow {text:?}"))
        };
        Ok(Self { commands: list.iter().map(command).collect::<anyhow::Result<_>>()? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The file of a command. The name is compared letter by letter, nothing is looked up.
    pub(super) fn executable(&self, name: &str) -> Result<&Path, String> {
        let is_named = |command: &&AllowedCommand| command.names.iter().any(|known| known == name);
        match self.commands.iter().find(is_named) {
            Some(command) => Ok(&command.file),
            None => Err(format!(
                "the command {name:?} is not allowed; a worker with `--exec-allow` and its name \
                 may start it"
            )),
        }
    }
}

impl AllowedCommand {
    fn find(text: &str) -> anyhow::Result<Self> {
        let path = match text.contains('/') {
            true if text.starts_with('/') => PathBuf::from(text),
            true => bail!("a path begins with /; a name has no / in it"),
            false => find_in_path(text)?,
        };
        if !is_command(&path) {
            bail!("{} is not a file that can be started", path.display());
        }
        let file = fs::canonicalize(&path).with_context(|| format!("read {}", path.display()))?;
        let path = path.into_os_string().into_string();
        let path = path.ok().context("the path is not UTF-8")?;
        Ok(Self { names: [text.to_owned(), path], file })
    }
}

fn find_in_path(name: &str) -> anyhow::Result<PathBuf> {
    if matches!(name, "" | "." | "..") {
        bail!("{name:?} is no command");
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    // A folder that is not absolute would mean another one tomorrow.
    let folders = env::split_paths(&folders).filter(|folder| folder.is_absolute());
    let found = folders.map(|folder| folder.join(name)).find(|path| is_command(path));
    found.with_context(|| format!("there is no command {name:?} in the folders of PATH"))
}

fn is_command(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(list: &[&str]) -> anyhow::Result<AllowedCommands> {
        AllowedCommands::new(&list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn allowed_command_name_is_resolved_once_and_matched_exactly() {
        let allowed = allowed(&["sh"]).unwrap();
        let file = allowed.executable("sh").unwrap();
        assert!(file.is_absolute() && !file.is_symlink(), "{file:?}");
        for bad in ["SH", "sh ", " sh", "./sh", "bash", "", "/bin/../bin/sh", "sh\0"] {
            allowed.executable(bad).unwrap_err();
        }
    }

    #[test]
    fn allowed_command_path_matches_only_itself() {
        let allowed = allowed(&["/bin/sh"]).unwrap();
        allowed.executable("/bin/sh").unwrap();
        for bad in ["sh", "//bin/sh", "/bin/sh/", "/bin//sh", "/bin/./sh"] {
            allowed.executable(bad).unwrap_err();
        }
    }

    #[test]
    fn invalid_command_cannot_be_allowed() {
        for bad in ["", ".", "..", "bin/sh", "./sh", "/bin", "/etc/passwd", "/no/such", "no-such"] {
            allowed(&[bad]).unwrap_err();
        }
    }
}
