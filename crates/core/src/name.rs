//! Names: of kinds, queues, groups, jobs, workflows, workers and unique keys.

use crate::bounds::NAME_BYTES_MAX;
use crate::{Error, Result};

/// Checks a name. `what` says whose name it is, for the error.
pub fn check(what: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(format!("the {what} is empty; give it at least one character")));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the {what} has {} bytes; at most {NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    if let Some((at, bad)) = name.char_indices().find(|(_, c)| c.is_control()) {
        return Err(Error::invalid(format!(
            "the {what} {name:?} has the control character {bad:?} at byte {at}; remove it"
        )));
    }
    // Lists of them are written with commas: on the command line, in variables.
    if matches!(what, "queue" | "kind") && name.contains(',') {
        return Err(Error::invalid(format!(
            "the {what} {name:?} has a comma; use another character"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_bad_characters_or_length_is_rejected() {
        for bad in ["", "a\0b", "a\nb", "tab\there", "\u{7f}", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(check("kind", bad).is_err(), "{bad:?}");
        }
        for list in ["queue", "kind"] {
            assert!(check(list, "a,b").is_err());
        }
        check("group", "a,b").unwrap();
        for good in ["a", "überweisung", "עברית", "a b", "'; drop table task; --"] {
            check("kind", good).unwrap();
        }
    }
}
