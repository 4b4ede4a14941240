//! The password file, in the format of libpq: `host:port:database:user:password`, one per line.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// What a password is looked up by.
#[derive(Debug, Clone, Copy)]
pub(super) struct PasswordKey<'a> {
    /// The host name, or the folder of the socket.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

impl fmt::Display for PasswordKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.host, self.port, self.database, self.user)
    }
}

/// Returns the password of the first line that matches, or why the file has none. As in libpq, a file that
/// other users may read is ignored with a warning.
pub(super) fn find_password(path: &Path, key: PasswordKey<'_>) -> Result<String, String> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("cannot be read: {error}"),
    })?;
    let ignored = |cause: &str| {
        tracing::warn!("password file {} is ignored: {cause}", path.display());
        format!("is ignored: {cause}")
    };
    if !metadata.is_file() {
        return Err(ignored("it is not a plain file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(ignored("its group or other users have access; run chmod 600"));
    }
    let text = fs::read_to_string(path).map_err(|error| ignored(&error.to_string()))?;
    let found = text.lines().find_map(|line| password_of_line(line, key));
    found.ok_or_else(|| format!("has no line that matches {key}"))
}

fn password_of_line(line: &str, key: PasswordKey<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = LineFields(line);
    let port = key.port.to_string();
    // A server that is reached by a socket is `localhost` in the file.
    let hosts = [key.host, if key.host.starts_with('/') { "localhost" } else { key.host }];
    let matches =
        |field: LineField, wanted: &[&str]| field.is_wildcard || wanted.contains(&&*field.text);
    let is_match = matches(fields.next()?, &hosts)
        && matches(fields.next()?, &[&port])
        && matches(fields.next()?, &[key.database])
        && matches(fields.next()?, &[key.user]);
    fields.next().filter(|_| is_match).map(|field| field.text)
}

/// The fields of a line, between colons. A backslash escapes a colon or a backslash.
struct LineFields<'a>(&'a str);

struct LineField {
    text: String,
    /// It is a `*` that is not escaped.
    is_wildcard: bool,
}

impl Iterator for LineFields<'_> {
    type Item = LineField;

    fn next(&mut self) -> Option<LineField> {
        if self.0.is_empty() {
            return None;
        }
        let mut text = String::new();
        let mut characters = self.0.char_indices();
        let mut rest = "";
        while let Some((at, character)) = characters.next() {
            match character {
                ':' => {
                    rest = &self.0[at + 1..];
                    break;
                }
                '\\' => text.push(characters.next().map_or('\\', |(_, escaped)| escaped)),
                character => text.push(character),
            }
        }
        let is_any = self.0 == "*" || self.0.starts_with("*:");
        self.0 = rest;
        Some(LineField { text, is_wildcard: is_any })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PasswordKey<'static> =
        PasswordKey { host: "db", port: 5432, database: "app", user: "me" };

    fn password_file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn find_in_text(text: &str, key: PasswordKey<'_>) -> Option<String> {
        find_password(password_file(text, 0o600).path(), key).ok()
    }

    #[test]
    fn passfile_first_matching_entry_is_used() {
        let text = "# db:5432:app:me:comment\n\
                    other:5432:app:me:a\ndb:1:app:me:b\ndb:5432:x:me:c\ndb:5432:app:you:d\n\
                    db:5432:app:me:right\n*:*:*:*:any\n";
        assert_eq!(find_in_text(text, KEY).as_deref(), Some("right"));
        assert_eq!(find_in_text(text, PasswordKey { user: "she", ..KEY }).as_deref(), Some("any"));
        assert_eq!(find_in_text("db:5432:app:you:d\n\n", KEY), None);
    }

    #[test]
    fn passfile_escapes_are_removed_and_password_ends_at_colon() {
        let key = PasswordKey { database: "a:b", ..KEY };
        assert_eq!(find_in_text(r"db:*:a\:b:me:c\:d\\e:rest", key).as_deref(), Some(r"c:d\e"));
        assert_eq!(find_in_text(r"\*:*:*:*:x", KEY), None);
        assert_eq!(find_in_text("db:5432:app:me:x\r\n", KEY).as_deref(), Some("x"));
    }

    #[test]
    fn passfile_socket_directory_matches_path_and_localhost() {
        let key = PasswordKey { host: "/run/pg", ..KEY };
        assert_eq!(find_in_text("localhost:*:*:*:x", key).as_deref(), Some("x"));
        assert_eq!(find_in_text("/run/pg:*:*:*:x", key).as_deref(), Some("x"));
        assert_eq!(find_in_text("db:*:*:*:x", key), None);
    }

    #[test]
    fn passfile_readable_by_others_is_ignored() {
        for mode in [0o640, 0o604, 0o660] {
            let ignored = find_password(password_file("*:*:*:*:x", mode).path(), KEY).unwrap_err();
            assert!(ignored.contains("is ignored") && ignored.contains("chmod 600"), "{ignored}");
        }
    }

    #[test]
    fn missing_password_has_a_cause() {
        let cause = |path: &Path| find_password(path, KEY).unwrap_err();
        assert_eq!(cause(Path::new("no/such/file")), "does not exist");
        assert_eq!(cause(&std::env::temp_dir()), "is ignored: it is not a plain file");
        let other = password_file("db:5432:app:you:secret", 0o600);
        assert_eq!(cause(other.path()), "has no line that matches db:5432:app:me");
    }

    #[test]
    fn passfile_entry_with_missing_fields_is_ignored() {
        assert_eq!(find_in_text("db:5432:app\n*:*:*:*", KEY), None);
    }
}
