//! Splits a connection URL, or a `key=value` connection string, into its parameters.

use percent_encoding::percent_decode_str;
use tidegate_core::{Error, Result};

/// A parameter and its value, decoded.
pub(super) type Parameter = (String, String);

/// Says what to do about a URL whose parts cannot be told apart.
const ENCODE_ADVICE: &str =
    "percent-encode characters such as @ / ? : # in a user name or a password";

/// Returns the parameters of a connection string in their order. User, password, hosts, ports and
/// database of a URL are parameters as well. No error contains a value of the URL: a password that
/// is not encoded can end up in any part of it.
pub(super) fn parse_parameters(text: &str) -> Result<Vec<Parameter>> {
    let scheme = ["postgres://", "postgresql://"];
    match scheme.iter().find_map(|scheme| text.strip_prefix(scheme)) {
        Some(rest) => parse_url(rest),
        None => parse_pairs(text),
    }
}

/// Returns where a connection string leads to, for people: its hosts, ports and database, and no other
/// parameter.
pub(crate) fn display_address(text: &str) -> String {
    let Ok(found) = parse_parameters(text) else {
        return "postgres://(invalid URL)".to_owned();
    };
    let last = |key: &str| {
        let value = found.iter().rev().find(|(name, _)| name == key);
        value.map_or("", |(_, value)| &**value)
    };
    let hosts = if last("host").is_empty() { last("hostaddr") } else { last("host") };
    let ports: Vec<&str> = last("port").split(',').collect();
    let with_port = |(index, host): (usize, &str)| {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match *ports.get(index).unwrap_or(&ports[0]) {
            "" => host,
            port => format!("{host}:{port}"),
        }
    };
    let database = match last("dbname") {
        "" => String::new(),
        name => format!("/{name}"),
    };
    if hosts.contains('/') {
        return format!("postgres://{database}?host={hosts}");
    }
    let hosts: Vec<String> = hosts.split(',').enumerate().map(with_port).collect();
    format!("postgres://{}{database}", hosts.join(","))
}

fn parse_url(rest: &str) -> Result<Vec<Parameter>> {
    let mut found = Vec::new();
    let credentials_end = credentials_end(rest);
    let rest = match credentials_end {
        Some(end) => {
            let (user, password) = split_optional(&rest[..end], ':');
            add_parameter(&mut found, "user", user)?;
            if let Some(password) = password {
                add_parameter(&mut found, "password", password)?;
            }
            &rest[end + 1..]
        }
        None => rest,
    };
    let (rest, query) = split_optional(rest, '?');
    let (hosts, database) = split_optional(rest, '/');
    // The `@` may belong to a password: then the parts of the URL are not what they seem to be.
    let has_at = |part: Option<&str>| part.is_some_and(|part| part.contains('@'));
    if has_at(database) || credentials_end.is_some() && has_at(query) {
        return Err(Error::invalid(format!(
            "the PostgreSQL URL has an @ behind its hosts; {ENCODE_ADVICE}, or in a parameter"
        )));
    }
    add_hosts(&mut found, hosts)?;
    if let Some(database) = database.filter(|database| !database.is_empty()) {
        add_parameter(&mut found, "dbname", database)?;
    }
    let mut keys = Vec::new();
    for parameter in query.unwrap_or_default().split('&').filter(|text| !text.is_empty()) {
        let (key, value) = parameter.split_once('=').ok_or_else(|| {
            Error::invalid(format!(
                "a parameter of the PostgreSQL URL has no value; {ENCODE_ADVICE}"
            ))
        })?;
        let key = percent_decode(key)?;
        refuse_second(&keys, &key)?;
        add_parameter(&mut found, &key, value)?;
        keys.push(key);
    }
    Ok(found)
}

/// Refuses a parameter that is given twice: one of the values would be ignored.
fn refuse_second(keys: &[String], key: &str) -> Result<()> {
    if keys.iter().any(|known| known == key) {
        return Err(Error::invalid(format!(
            "the PostgreSQL URL has the parameter {key:?} twice; remove one of them"
        )));
    }
    Ok(())
}

/// Returns a connection URL without its password, and else as it is. None where it is not valid.
pub(crate) fn without_password(text: &str) -> Option<String> {
    parse_parameters(text).ok()?;
    let (scheme, rest) = text.split_once("://")?;
    let (user, rest) = match credentials_end(rest) {
        Some(end) => (format!("{}@", split_optional(&rest[..end], ':').0), &rest[end + 1..]),
        None => (String::new(), rest),
    };
    let (rest, query) = split_optional(rest, '?');
    let is_shown = |parameter: &&str| {
        let key = parameter.split_once('=').map_or(*parameter, |(key, _)| key);
        !percent_decode(key).is_ok_and(|key| key == "password")
    };
    let query: Vec<&str> = query.unwrap_or_default().split('&').filter(is_shown).collect();
    let query = query.join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    Some(format!("{scheme}://{user}{rest}{mark}{query}"))
}

/// Returns where the `@` behind the credentials is. A password may contain a slash that is not
/// encoded: then the part before it has a port that is no number.
fn credentials_end(rest: &str) -> Option<usize> {
    let hosts = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let has_bad_port = || {
        !hosts.starts_with('[')
            && hosts.split_once(':').is_some_and(|(_, port)| !is_port_number(port))
    };
    hosts.find('@').or_else(|| rest.find('@').filter(|_| has_bad_port()))
}

fn is_port_number(text: &str) -> bool {
    text.split([',', ':']).next().unwrap_or_default().bytes().all(|byte| byte.is_ascii_digit())
}

fn add_hosts(found: &mut Vec<Parameter>, hosts: &str) -> Result<()> {
    if hosts.contains('@') {
        return Err(Error::invalid(format!(
            "the PostgreSQL URL has more than one @; {ENCODE_ADVICE}"
        )));
    }
    if hosts.is_empty() {
        return Ok(());
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((name, "")) => (name, ""),
            Some((name, port)) => (name, port.strip_prefix(':').unwrap_or("none")),
            None => host.split_once(':').unwrap_or((host, "")),
        };
        names.push(percent_decode(name)?);
        ports.push(percent_decode(port)?);
    }
    found.push(("host".to_owned(), names.join(",")));
    if ports.iter().any(|port| !port.is_empty()) {
        found.push(("port".to_owned(), ports.join(",")));
    }
    Ok(())
}

fn add_parameter(found: &mut Vec<Parameter>, key: &str, value: &str) -> Result<()> {
    found.push((key.to_owned(), percent_decode(value)?));
    Ok(())
}

fn percent_decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| Error::invalid("a part of the PostgreSQL URL is not UTF-8"));
    Ok(decoded?.into_owned())
}

fn split_optional(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Reads `key=value` pairs with white space between them. A value in single quotes may contain
/// white space; a backslash escapes the next character.
fn parse_pairs(text: &str) -> Result<Vec<Parameter>> {
    let mut found: Vec<Parameter> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, value) = rest.split_once('=').ok_or_else(|| {
            Error::invalid(
                "the PostgreSQL connection string is neither a URL nor a list of key=value pairs",
            )
        })?;
        let (value, behind) = parse_pair_value(value.trim_start())?;
        let key = key.trim().to_owned();
        if found.iter().any(|(known, _)| *known == key) {
            return Err(Error::invalid(format!(
                "the PostgreSQL connection string has the parameter {key:?} twice; remove one of them"
            )));
        }
        found.push((key, value));
        rest = behind.trim_start();
    }
    Ok(found)
}

fn parse_pair_value(text: &str) -> Result<(String, &str)> {
    let (quoted, text) = match text.strip_prefix('\'') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            character if !quoted && character.is_whitespace() => return Ok((value, &text[at..])),
            character => value.push(character),
        }
    }
    if quoted {
        return Err(Error::invalid(
            "a quoted value of the PostgreSQL connection string has no end",
        ));
    }
    Ok((value, ""))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let found = parse_parameters(text).unwrap();
        let found: Vec<_> = found.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn url_parts_are_parameters() {
        check("postgres://", &[]);
        check("postgresql://a", &[("host", "a")]);
        check(
            "postgres://me:se%40cret@a:1,b,c:3/db?sslmode=require&host=x",
            &[
                ("user", "me"),
                ("password", "se@cret"),
                ("host", "a,b,c"),
                ("port", "1,,3"),
                ("dbname", "db"),
                ("sslmode", "require"),
                ("host", "x"),
            ],
        );
        check("postgres://[::1]:6432/", &[("host", "::1"), ("port", "6432")]);
        check("postgres://%2Frun%2Fpg/db", &[("host", "/run/pg"), ("dbname", "db")]);
        check("postgres:///db?host=/run", &[("dbname", "db"), ("host", "/run")]);
        check("postgres://a?user=me", &[("host", "a"), ("user", "me")]);
    }

    #[test]
    fn at_sign_in_parameter_does_not_end_credentials() {
        check(
            "postgres://a/db?application_name=me@home",
            &[("host", "a"), ("dbname", "db"), ("application_name", "me@home")],
        );
    }

    #[test]
    fn slash_in_password_is_accepted() {
        check(
            "postgres://me:a/b@c/d",
            &[("user", "me"), ("password", "a/b"), ("host", "c"), ("dbname", "d")],
        );
    }

    #[test]
    fn ambiguous_at_sign_is_rejected_without_showing_password() {
        let mut errors = String::new();
        for text in [
            "postgres://me:5/cret@host/db",
            "postgres://host/d@cret",
            "postgres://me@host/db?password=se@cret",
            "postgres://me:a?b=se@host/db?application_name=x@cret",
        ] {
            let error = parse_parameters(text).unwrap_err().to_string();
            assert!(!error.contains("cret"), "{text}: {error}");
            errors.push_str(&format!("{error}\n"));
        }
        assert_snapshot!(
            errors,
            @"
            the PostgreSQL URL has an @ behind its hosts; percent-encode characters such as @ / ? : # in a user name or a password, or in a parameter
            the PostgreSQL URL has an @ behind its hosts; percent-encode characters such as @ / ? : # in a user name or a password, or in a parameter
            the PostgreSQL URL has an @ behind its hosts; percent-encode characters such as @ / ? : # in a user name or a password, or in a parameter
            the PostgreSQL URL has an @ behind its hosts; percent-encode characters such as @ / ? : # in a user name or a password, or in a parameter
            "
        );
        check(
            "postgres://a:1/db?user=me&password=p@ss",
            &[("host", "a"), ("port", "1"), ("dbname", "db"), ("user", "me"), ("password", "p@ss")],
        );
    }

    #[test]
    fn url_address_omits_user_password_and_parameters() {
        for (text, shown) in [
            ("postgres://me:secret@host:1/db?password=x", "postgres://host:1/db"),
            ("postgres://db:5432/app?user=me&password=p@ss", "postgres://db:5432/app"),
            ("postgresql://a,b:2/db", "postgres://a,b:2/db"),
            ("postgres://[::1]:6432/", "postgres://[::1]:6432"),
            ("postgres:///db?host=/run&sslmode=disable", "postgres:///db?host=/run"),
            ("postgres://%2Frun/db", "postgres:///db?host=/run"),
            ("postgres://me:5/cret@host/db", "postgres://(invalid URL)"),
        ] {
            assert_eq!(display_address(text), shown, "{text}");
        }
    }

    #[test]
    fn parameter_that_is_given_twice_is_an_error() {
        for text in [
            "postgres://host/db?sslmode=require&sslmode=disable",
            "postgres://host/db?sslmode=require&%73slmode=require",
            "host=a sslmode=require sslmode=disable",
        ] {
            let error = parse_parameters(text).unwrap_err().to_string();
            assert!(error.contains("\"sslmode\" twice"), "{text}: {error}");
        }
        // As in libpq, a parameter replaces the part of the URL.
        check("postgres://a?host=b", &[("host", "a"), ("host", "b")]);
    }

    #[test]
    fn url_without_password_keeps_everything_else() {
        for (text, shown) in [
            (
                "postgres://me:s%40cret@a:1,b/db?sslmode=require&password=secret&passfile=%2Fx",
                Some("postgres://me@a:1,b/db?sslmode=require&passfile=%2Fx"),
            ),
            ("postgres://me:a/cret@host/db", Some("postgres://me@host/db")),
            ("postgresql://host?p%61ssword=secret", Some("postgresql://host")),
            ("postgres://me@host/db", Some("postgres://me@host/db")),
            ("postgres://me:5/cret@host/db", None),
        ] {
            assert_eq!(without_password(text).as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn second_at_sign_is_rejected_without_showing_password() {
        let error = parse_parameters("postgres://me:se@cret@host/db").unwrap_err().to_string();
        assert!(!error.contains("cret"), "{error}");
        assert_snapshot!(
            error,
            @"the PostgreSQL URL has more than one @; percent-encode characters such as @ / ? : # in a user name or a password"
        );
    }

    #[test]
    fn key_value_pairs_are_split_at_unquoted_white_space() {
        check(
            r"host=a  password='b \'c\\' user = me",
            &[("host", "a"), ("password", r"b 'c\"), ("user", "me")],
        );
        for text in ["host", "host=a password='b"] {
            let error = parse_parameters(text).unwrap_err();
            assert_eq!(error.kind(), tidegate_core::ErrorKind::Invalid, "{text}");
        }
    }
}
