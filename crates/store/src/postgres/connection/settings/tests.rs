//! Precedence and validation of connection settings.

use super::*;

fn environment(variables: &[(&'static str, &str)]) -> Environment {
    let variables = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Environment { variables, home: None }
}

fn parse_settings(url: &str) -> Result<Settings> {
    parse_settings_in(url, &environment(&[]))
}

fn parse_settings_in(url: &str, environment: &Environment) -> Result<Settings> {
    Settings::parse(url, environment, &Timeouts::default())
}

#[track_caller]
fn check_error(settings: Result<Settings>, words: &[&str]) {
    let error = settings.expect_err("an error");
    assert_eq!(error.kind(), tidegate_core::ErrorKind::Invalid, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[test]
fn several_servers_default_to_read_write_session() {
    let attributes =
        |url: &str| parse_settings(url).expect("valid").config.get_target_session_attrs();
    assert_eq!(attributes("postgres://one/db"), TargetSessionAttrs::Any);
    assert_eq!(attributes("postgres://one,two/db"), TargetSessionAttrs::ReadWrite);
    assert_eq!(
        attributes("postgres://one,two/db?target_session_attrs=any"),
        TargetSessionAttrs::Any
    );
}

#[test]
fn url_takes_precedence_over_environment_and_default() {
    let variables = environment(&[
        ("PGSSLMODE", "verify-ca"),
        ("PGSSLROOTCERT", "env.crt"),
        ("PGSSLCERT", "env-client.crt"),
        ("PGSSLKEY", "env-client.key"),
        ("PGPASSWORD", "env-password"),
        ("PGPASSFILE", "env-file"),
    ]);
    let of_url = parse_settings_in(
        "postgres://me:url-password@host/db?sslmode=require&sslrootcert=a.crt&sslcert=b&sslkey=c\
         &passfile=d",
        &variables,
    );
    let of_url = of_url.unwrap();
    assert_eq!(of_url.tls.mode, SslMode::Require);
    assert_eq!(of_url.tls.roots, Some(RootCertificates::File("a.crt".into())));
    assert_eq!(of_url.tls.client, Some(("b".into(), "c".into())));
    assert_eq!(of_url.password, Some(Password("url-password".to_owned())));
    assert_eq!(of_url.password_file, Some("d".into()));
    let sources = |of: &Settings| (of.password_source, of.password_file_source);
    assert_eq!(sources(&of_url), ("the URL", Some("passfile")));

    let of_environment = parse_settings_in("postgres://me@host/db", &variables).unwrap();
    assert_eq!(of_environment.tls.mode, SslMode::VerifyCa);
    assert_eq!(of_environment.tls.roots, Some(RootCertificates::File("env.crt".into())));
    let client = Some(("env-client.crt".into(), "env-client.key".into()));
    assert_eq!(of_environment.tls.client, client);
    assert_eq!(of_environment.password, Some(Password("env-password".to_owned())));
    assert_eq!(of_environment.password_file, Some("env-file".into()));
    assert_eq!(sources(&of_environment), ("PGPASSWORD", Some("PGPASSFILE")));

    let of_defaults = parse_settings("postgres://me@host/db").unwrap();
    assert_eq!(of_defaults.tls.mode, SslMode::Prefer);
    assert_eq!(sources(&of_defaults), ("", None));
    assert_eq!((of_defaults.tls.roots, of_defaults.tls.client), (None, None));
    assert_eq!((of_defaults.password, of_defaults.password_file), (None, None));
}

#[test]
fn files_of_home_directory_are_defaults() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".postgresql");
    std::fs::create_dir(&folder).unwrap();
    let environment = Environment { variables: vec![], home: Some(home.path().to_owned()) };
    let without = parse_settings_in("postgres://me@host", &environment).unwrap();
    assert_eq!(without.password_file, Some(home.path().join(".pgpass")));
    assert_eq!((without.tls.roots, without.tls.client), (None, None));
    for file in ["root.crt", "postgresql.crt"] {
        std::fs::write(folder.join(file), "").unwrap();
    }
    let with = parse_settings_in("postgres://me@host", &environment).unwrap();
    assert_eq!(with.tls.roots, Some(RootCertificates::File(folder.join("root.crt"))));
    let client = (folder.join("postgresql.crt"), folder.join("postgresql.key"));
    assert_eq!(with.tls.client, Some(client));
}

#[test]
fn unsupported_parameter_is_rejected_by_name() {
    check_error(parse_settings("postgres://host/db?sslmood=require"), &["\"sslmood\"", "sslmode"]);
    check_error(parse_settings("postgres://host/db?sslcrl=x"), &["\"sslcrl\""]);
    check_error(parse_settings("postgres://host/db?service=x"), &["service"]);
    check_error(
        parse_settings("postgres://host/db?sslpassword=x"),
        &["sslpassword", "encrypted keys"],
    );
    check_error(parse_settings("host=a sslmood=b"), &["\"sslmood\""]);
    check_error(
        parse_settings_in("postgres://host/db", &environment(&[("PGSERVICE", "prod")])),
        &["PGSERVICE"],
    );
}

#[test]
fn empty_sslmode_is_rejected_with_its_source() {
    check_error(parse_settings("postgres://host/db?sslmode="), &["sslmode=\"\"", "verify-full"]);
    let empty = environment(&[("PGSSLMODE", "")]);
    check_error(
        parse_settings_in("postgres://host/db", &empty),
        &["PGSSLMODE=\"\"", "verify-full"],
    );
    let of_url = parse_settings_in("postgres://host/db?sslmode=disable", &empty).unwrap();
    assert_eq!(of_url.tls.mode, SslMode::Disable);
    let wrong = environment(&[("PGSSLMODE", "requird")]);
    check_error(parse_settings_in("postgres://host/db", &wrong), &["PGSSLMODE=\"requird\""]);
}

#[test]
fn invalid_value_is_rejected_with_parameter_name() {
    for (parameter, word) in [
        ("sslmode=allow", "sslmode"),
        ("connect_timeout=soon", "connect_timeout"),
        ("target_session_attrs=standby", "target_session_attrs"),
        ("channel_binding=yes", "channel_binding"),
        ("keepalives_idle=-1", "keepalives_idle"),
        ("hostaddr=host", "hostaddr"),
        ("load_balance_hosts=yes", "load_balance_hosts"),
        ("sslnegotiation=direct", "sslnegotiation"),
        ("sslkey=a", "sslcert"),
        ("sslcert=a", "sslkey"),
        ("port=1,2", "ports"),
        ("port=0", "from 1 to 65535"),
        ("connect_timeout=99999999999", "from 0 to 2147483647"),
    ] {
        check_error(parse_settings(&format!("postgres://host/db?{parameter}")), &[word]);
    }
    check_error(
        parse_settings_in("postgres://host", &environment(&[("PGSSLMODE", "on")])),
        &["PGSSLMODE"],
    );
    check_error(parse_settings("postgres:///db"), &["no host"]);
}

#[test]
fn certificate_verification_requires_a_ca() {
    check_error(parse_settings("postgres://h?sslmode=verify-full"), &["sslrootcert", "system"]);
    check_error(parse_settings("postgres://h?sslmode=verify-ca"), &["sslrootcert"]);
    for weak in ["disable", "prefer", "require", "verify-ca"] {
        let url = format!("postgres://h?sslrootcert=system&sslmode={weak}");
        check_error(parse_settings(&url), &[weak, "verify-full"]);
    }
    let system = parse_settings("postgres://h?sslrootcert=system").unwrap();
    assert_eq!(
        (system.tls.mode, system.tls.roots),
        (SslMode::VerifyFull, Some(RootCertificates::System))
    );
}

#[test]
fn configured_ca_is_verified_in_every_sslmode() {
    let verification = |url: &str| parse_settings(url).unwrap().tls.verification();
    assert_eq!(verification("postgres://h?sslmode=require"), None);
    let ca = Some(SslMode::VerifyCa);
    assert_eq!(verification("postgres://h?sslmode=require&sslrootcert=a"), ca);
    assert_eq!(verification("postgres://h?sslmode=verify-ca&sslrootcert=a"), ca);
    let full = Some(SslMode::VerifyFull);
    assert_eq!(verification("postgres://h?sslmode=verify-full&sslrootcert=a"), full);
}

#[test]
fn url_servers_have_hosts_addresses_and_ports() {
    let shown = |url: &str| -> Vec<String> {
        parse_settings(url).unwrap().servers.iter().map(ToString::to_string).collect()
    };
    assert_eq!(shown("postgres://a,b:2,c:3/db"), ["a:5432", "b:2", "c:3"]);
    assert_eq!(shown("postgres://a,b/db?port=7"), ["a:7", "b:7"]);
    assert_eq!(shown("postgres:///db?host=/run/pg"), ["/run/pg/.s.PGSQL.5432"]);
    assert_eq!(shown("host=a,/run port=1,2"), ["a:1", "/run/.s.PGSQL.2"]);
    let server = parse_settings("postgres:///db?hostaddr=127.0.0.1").unwrap().servers.remove(0);
    assert_eq!(server.host, Host::Tcp("127.0.0.1".to_owned()));
    assert_eq!(server.address, Some(IpAddr::from([127, 0, 0, 1])));
}

#[test]
fn url_timeouts_take_precedence_over_options() {
    let timeouts = Timeouts {
        connect: Duration::from_secs(7),
        tcp_keepalive: Duration::from_secs(9),
        tcp_user: Duration::from_secs(8),
        ..Timeouts::default()
    };
    let parse = |url: &str| Settings::parse(url, &environment(&[]), &timeouts).unwrap();
    let settings = parse("postgres://h");
    assert_eq!(settings.connect_timeout, Duration::from_secs(7));
    assert!(settings.config.get_keepalives());
    assert_eq!(settings.config.get_keepalives_idle(), Duration::from_secs(9));
    assert_eq!(settings.config.get_keepalives_interval(), Some(Duration::from_secs(3)));
    assert_eq!(settings.config.get_keepalives_retries(), Some(3));
    assert_eq!(settings.config.get_tcp_user_timeout(), Some(&Duration::from_secs(8)));
    let settings = parse(
        "postgres://h?connect_timeout=1&keepalives_idle=2&keepalives_interval=4&\
         keepalives_count=5&tcp_user_timeout=1500",
    );
    assert_eq!(settings.connect_timeout, Duration::from_secs(1));
    assert_eq!(settings.config.get_keepalives_idle(), Duration::from_secs(2));
    assert_eq!(settings.config.get_keepalives_interval(), Some(Duration::from_secs(4)));
    assert_eq!(settings.config.get_keepalives_retries(), Some(5));
    assert_eq!(settings.config.get_tcp_user_timeout(), Some(&Duration::from_millis(1500)));
    let settings = parse("postgres://h?keepalives=0&tcp_user_timeout=0&connect_timeout=0");
    assert!(!settings.config.get_keepalives());
    assert_eq!(settings.config.get_tcp_user_timeout(), None);
    assert_eq!(settings.connect_timeout, Duration::from_secs(7));
}

#[test]
fn tcp_timeouts_are_clamped_to_kernel_bounds() {
    let of = |tcp_keepalive, tcp_user| {
        let timeouts = Timeouts { tcp_keepalive, tcp_user, ..Timeouts::default() };
        let settings = Settings::parse("postgres://h", &environment(&[]), &timeouts).unwrap();
        let interval = settings.config.get_keepalives_interval().unwrap();
        let user = *settings.config.get_tcp_user_timeout().unwrap();
        (settings.config.get_keepalives_idle().as_secs(), interval.as_secs(), user.as_millis())
    };
    let (ms, max) = (Duration::from_millis(300), Duration::MAX);
    assert_eq!(of(ms, ms), (1, 1, 300));
    assert_eq!(of(Duration::ZERO, Duration::ZERO), (1, 1, 1));
    assert_eq!(of(Duration::from_secs(32_768), max), (32_767, 10_922, 2_147_483_647));
    assert_eq!(of(max, max), (32_767, 32_767, 2_147_483_647));
    for parameter in [
        "keepalives_idle=32768",
        "keepalives_interval=32768",
        "keepalives_count=128",
        "keepalives_retries=128",
        "tcp_user_timeout=2147483648",
    ] {
        let (name, _) = parameter.split_once('=').unwrap();
        check_error(parse_settings(&format!("postgres://h?{parameter}")), &[name, "from 0 to"]);
    }
}

#[test]
fn server_session_gets_tcp_timeouts_of_client() {
    let text = |url: &str| parse_settings(url).unwrap().server_tcp_settings_sql();
    assert_eq!(
        text("postgres://h"),
        "SET tcp_keepalives_idle = 10;SET tcp_keepalives_interval = 3;\
         SET tcp_keepalives_count = 3;SET tcp_user_timeout = 10000;"
    );
    assert_eq!(text("postgres://h?keepalives=0&tcp_user_timeout=0"), "");
    assert_eq!(
        text("postgres://h?options=-c%20tcp_keepalives_idle%3D5%20-c%20tcp_user_timeout%3D9"),
        "SET tcp_keepalives_interval = 3;SET tcp_keepalives_count = 3;"
    );
}

#[test]
fn connect_timeout_of_options_is_divided_among_addresses() {
    let limit =
        |url: &str, addresses| parse_settings(url).unwrap().address_limit(addresses).as_millis();
    assert_eq!(limit("postgres://a", 1), 10_000);
    assert_eq!(limit("postgres://a,b", 1), 5_000);
    assert_eq!(limit("postgres://a,b", 2), 2_500);
    assert_eq!(limit("postgres://a,b?connect_timeout=4", 2), 4_000);
}

#[test]
fn password_is_not_in_any_output() {
    let settings = parse_settings("postgres://me:se%63ret@host/db?application_name=x").unwrap();
    assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
    for url in [
        "postgres://me:secret@host:port/db",
        "postgres://me:se@secret@host/db",
        "postgres://me:a/secret",
        "postgres://me:secret@host/db?sslmood=1",
        "postgres://me:1/secret@host/db",
        "postgres://me@host/db?password=a@secret",
        "host=a password=secret sslmode=x",
        "postgres://host/db?password=secret&port=a",
    ] {
        let error = parse_settings(url).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
