//! TLS to a PostgreSQL that requires it, with certificates of a private CA.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use insta::assert_snapshot;
use tempfile::TempDir;
use tidegate_core::{
    Claim, Error, ErrorKind, Heartbeat, NewTask, Store, StoreReader, Submission, WorkerId,
};
use tidegate_measure::postgres_server::StopMode;
use tidegate_store::postgres::{Options, Postgres, Timeouts};
use tidegate_testkit::authority::Authority;
use tidegate_testkit::own_server::OwnServer;
use tidegate_testkit::wait;

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

const SETTINGS: [&str; 5] = [
    "ssl=on",
    "ssl_cert_file=server.crt",
    "ssl_key_file=server.key",
    "ssl_ca_file=ca.crt",
    "fsync=off",
];

/// Connections by TCP must be encrypted. How a user is authenticated depends on its name.
const ACCESS: &str = "local all all trust\n\
    hostssl all by_certificate all cert clientcert=verify-full\n\
    hostssl all by_password all scram-sha-256\n\
    hostssl all all all trust\n";

/// A server that requires TLS, and the files of its clients.
struct Fixture {
    server: OwnServer,
    authority: Authority,
    folder: TempDir,
}

impl Fixture {
    /// Starts a server whose certificate is valid for `localhost`.
    async fn start() -> Self {
        let authority = Authority::new("private CA");
        let server = OwnServer::init(&SETTINGS);
        let fixture = Self { server, authority, folder: tempfile::tempdir().expect("a folder") };
        fixture.server.write("ca.crt", fixture.authority.certificate());
        fixture.server.write("pg_hba.conf", ACCESS);
        fixture.set_certificate(fixture.authority.server("localhost"));
        fixture.server.start();
        fixture.write("ca.crt", fixture.authority.certificate());
        fixture.write("other-ca.crt", Authority::new("other CA").certificate());
        let users = "CREATE USER by_certificate SUPERUSER; \
            CREATE USER by_password SUPERUSER PASSWORD 'first'";
        fixture.server.connect().await.batch_execute(users).await.expect("create users");
        fixture
    }

    fn set_certificate(&self, (certificate, key): (String, String)) {
        self.server.write("server.crt", &certificate);
        self.server.write("server.key", &key);
    }

    /// Writes a file of the clients that only its owner may read.
    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).expect("write a file");
        set_mode(&path, 0o600);
        path
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn url(&self, user: &str, parameters: &str) -> String {
        let port = self.server.port();
        format!("postgres://{user}@localhost:{port}/postgres?hostaddr=127.0.0.1&{parameters}")
    }

    async fn connect(&self, parameters: &str) -> Result<Postgres, Error> {
        Postgres::connect(&self.url("postgres", parameters), Options::default()).await
    }

    /// Connects, which must fail with an error that contains the words; returns the error without port and folder.
    async fn check_refused(&self, url: &str, words: &[&str]) -> String {
        let refused = Postgres::connect(url, Options::default()).await.expect_err(url).to_string();
        for word in words {
            assert!(refused.contains(word), "{url}: no {word:?} in: {refused}");
        }
        let refused = refused.replace(&format!(":{}", self.server.port()), ":PORT");
        refused.replace(&self.folder.path().display().to_string(), "FOLDER")
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

fn submission() -> Submission {
    Submission { tasks: vec![NewTask::new("a", "null")], ..Submission::default() }
}

#[tokio::test]
async fn server_certificate_is_verified_according_to_sslmode() {
    let fixture = Fixture::start().await;
    let (ca, other) = (fixture.path("ca.crt"), fixture.path("other-ca.crt"));
    let good = format!("sslmode=verify-full&sslrootcert={ca}");
    let store = fixture.connect(&good).await.expect("verify-full");
    store.migrate().await.expect("migrate");
    let encryption = store.connection_encryption().expect("known");
    assert!(encryption.is_encrypted, "{encryption:?}");
    assert_eq!(encryption.certificate_verification, Some("verify-full"));
    assert_eq!(encryption.tls_version.as_deref(), Some("TLSv1.3"));

    for (parameters, verified) in [
        ("sslmode=prefer".to_owned(), None),
        ("sslmode=require".to_owned(), None),
        (String::new(), None),
        (format!("sslmode=require&sslrootcert={ca}"), Some("verify-ca")),
        (format!("sslmode=verify-ca&sslrootcert={ca}&host=127.0.0.1"), Some("verify-ca")),
    ] {
        let store = fixture.connect(&parameters).await.expect(&parameters);
        let encryption = store.connection_encryption().expect("known");
        assert!(encryption.is_encrypted, "{parameters}");
        assert_eq!(encryption.certificate_verification, verified, "{parameters}");
    }

    let url = |parameters: &str| fixture.url("postgres", parameters);
    for mode in ["verify-full", "verify-ca", "require"] {
        let wrong = url(&format!("sslmode={mode}&sslrootcert={other}"));
        let words = ["localhost", "not signed by a CA of sslrootcert", &*other];
        fixture.check_refused(&wrong, &words).await;
    }
    let by_address = url(&format!("{good}&host=127.0.0.1"));
    let refused = fixture.check_refused(&by_address, &["127.0.0.1"]).await;
    assert_snapshot!(
        refused,
        @r#"127.0.0.1:PORT: the certificate of the server is not valid for the host name 127.0.0.1 (sslmode=verify-full): certificate not valid for name "127.0.0.1"; certificate is only valid for DnsName("localhost")"#
    );
    let clear = url("sslmode=disable");
    let refused = fixture.check_refused(&clear, &["sslmode=disable"]).await;
    assert_snapshot!(
        refused,
        @r#"localhost:PORT: PostgreSQL says: no pg_hba.conf entry for host "127.0.0.1", user "postgres", database "postgres", no encryption (28000); sslmode=disable: if the server requires TLS, use sslmode=require or stronger"#
    );
    let missing = url("sslmode=verify-full&sslrootcert=no/such/file");
    let refused = fixture.check_refused(&missing, &["sslrootcert", "no/such/file"]).await;
    assert_snapshot!(
        refused,
        @"localhost:PORT: sslrootcert no/such/file cannot be read: No such file or directory (os error 2)"
    );
    // The CA of the test is not one of the operating system, if that has any.
    fixture.check_refused(&url("sslrootcert=system"), &["sslrootcert"]).await;

    fixture.server.stop(StopMode::Fast);
    fixture.set_certificate(fixture.authority.expired_server("localhost"));
    fixture.server.start();
    let words = ["localhost", "expired", "valid until 2020-01-01 00:00:00 UTC"];
    fixture.check_refused(&url(&good), &words).await;
    fixture.connect("sslmode=require").await.expect("nothing is verified without a CA");

    fixture.server.stop(StopMode::Fast);
    let (certificate, key) = Authority::self_signed("localhost");
    fixture.write("self-signed.crt", &certificate);
    fixture.set_certificate((certificate, key));
    fixture.server.start();
    let own = url(&format!("sslmode=verify-full&sslrootcert={}", fixture.path("self-signed.crt")));
    fixture.check_refused(&own, &["localhost", "marked as a CA"]).await;
}

#[tokio::test]
async fn client_certificate_authenticates_its_user() {
    let fixture = Fixture::start().await;
    let (certificate, key) = fixture.authority.client("by_certificate");
    fixture.write("client.crt", &certificate);
    let key_path = fixture.write("client.key", &key);
    let ca = fixture.path("ca.crt");
    let base = format!("sslmode=verify-full&sslrootcert={ca}");
    let files = format!(
        "{base}&sslcert={}&sslkey={}",
        fixture.path("client.crt"),
        fixture.path("client.key")
    );
    let url = fixture.url("by_certificate", &files);
    Postgres::connect(&url, Options::default()).await.expect("a client certificate");

    let without = fixture.url("by_certificate", &base);
    let refused = fixture.check_refused(&without, &[]).await;
    assert_snapshot!(
        refused,
        @"localhost:PORT: PostgreSQL says: connection requires a valid client certificate (28000)"
    );
    let (foreign, foreign_key) = Authority::new("other CA").client("by_certificate");
    fixture.write("client.crt", &foreign);
    fixture.write("client.key", &foreign_key);
    fixture.check_refused(&url, &["does not trust", "sslcert", "client.crt"]).await;

    // Files are read for each connection: the first certificate works again without a new URL.
    fixture.write("client.crt", &certificate);
    fixture.write("client.key", &key);
    Postgres::connect(&url, Options::default()).await.expect("the certificate was replaced");
    set_mode(&key_path, 0o644);
    let refused = fixture.check_refused(&url, &["sslkey", "client.key", "chmod 600"]).await;
    assert_snapshot!(
        refused,
        @"localhost:PORT: sslkey FOLDER/client.key is refused: its group or other users have access; run chmod 600"
    );
    fixture.write(
        "client.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let refused = fixture.check_refused(&url, &["sslkey", "client.key"]).await;
    assert_snapshot!(
        refused,
        @"localhost:PORT: sslkey FOLDER/client.key is encrypted, which is not supported; decrypt it, for example with `openssl pkey`"
    );
}

/// Files of a certificate and its key cannot be replaced in one step, so a connection can meet two that do not
/// belong together.
#[tokio::test]
async fn broken_client_key_fails_running_store_until_replaced() {
    let fixture = Fixture::start().await;
    let (certificate, key) = fixture.authority.client("by_certificate");
    fixture.write("client.crt", &certificate);
    fixture.write("client.key", &key);
    let parameters = format!(
        "sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}",
        fixture.path("ca.crt"),
        fixture.path("client.crt"),
        fixture.path("client.key")
    );
    let url = fixture.url("by_certificate", &parameters);
    let store = Postgres::connect(&url, Options::default()).await.expect("connect");
    store.migrate().await.expect("migrate");

    let admin = fixture.server.connect().await;
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE usename = 'by_certificate'";
    let (_, other_key) = fixture.authority.client("by_certificate");
    for broken in ["", "no key", &other_key] {
        fixture.write("client.key", broken);
        admin.batch_execute(terminate).await.expect("terminate");
        // The first calls can meet connections that are just being closed.
        wait::until_async("the error names the broken key", async || {
            let failed = store.submit(submission()).await.expect_err("the key is broken");
            assert!(failed.is_retryable(), "{failed}");
            failed.to_string().contains("client.key")
        })
        .await;
        let opened = Postgres::connect(&url, Options::default()).await.expect_err("a broken key");
        assert_eq!(opened.kind(), ErrorKind::Invalid, "{opened}");
        fixture.write("client.key", &key);
        store.submit(submission()).await.expect("the key is back");
    }
}

/// The variable that makes `system_ca_verifies_server_certificate` connect to its URL and end.
const SYSTEM_CA_URL: &str = "TIDEGATE_TEST_SYSTEM_CA_URL";

/// The CAs of the operating system are read once per process, so the store of this test runs in a process of its
/// own, in which `SSL_CERT_FILE` is the private CA.
#[tokio::test]
async fn system_ca_verifies_server_certificate() {
    if let Ok(url) = std::env::var(SYSTEM_CA_URL) {
        let store = Postgres::connect(&url, Options::default()).await.expect("the CA is known");
        let encryption = store.connection_encryption().expect("known");
        assert_eq!(encryption.certificate_verification, Some("verify-full"), "{encryption:?}");
        return;
    }
    let fixture = Fixture::start().await;
    let connects = |ca: &str, parameters: &str| {
        let mut child = Command::new(std::env::current_exe().expect("the test binary"));
        child
            .args(["--exact", "tls::system_ca_verifies_server_certificate"])
            .env(SYSTEM_CA_URL, fixture.url("postgres", parameters))
            .env("SSL_CERT_FILE", fixture.path(ca))
            .env_remove("SSL_CERT_DIR");
        let output = child.output().expect("run the test binary");
        assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "{output:?}");
        output.status.success()
    };
    assert!(connects("ca.crt", "sslrootcert=system"));
    assert!(connects("ca.crt", "sslrootcert=system&sslmode=verify-full"));
    assert!(!connects("other-ca.crt", "sslrootcert=system"), "another CA signed it");
    assert!(!connects("ca.crt", "sslrootcert=system&host=127.0.0.1"), "another host name");
}

#[tokio::test]
async fn every_connection_including_listener_is_encrypted() {
    let fixture = Fixture::start().await;
    let ca = fixture.path("ca.crt");
    let url = fixture.url("postgres", &format!("sslmode=verify-full&sslrootcert={ca}"));
    // The LISTEN stays the last statement of its session: the first probe comes after this test.
    let timeouts = Timeouts { heartbeat: PATIENCE, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let store = Postgres::connect(&url, options).await.expect("connect");
    store.migrate().await.expect("migrate");
    let changed = tokio::spawn({
        let store = store.clone();
        async move { store.wait_for_notification().await }
    });
    // The first wake-up comes from the LISTEN itself.
    tokio::time::timeout(PATIENCE, changed).await.expect("listening").expect("no panic");
    store.submit(submission()).await.expect("submit");
    let worker = WorkerId("worker".into());
    let claim = Claim {
        worker: worker.clone(),
        queues: ["default".into()].into(),
        kinds: ["a".into()].into(),
        tasks_max: 1,
        lease_ms: 30_000,
        poll_interval_ms: 1000,
    };
    let tokens = vec![store.claim(claim).await.expect("claim")[0].token];
    let (progress, ran) = (vec![], vec![]);
    let extend =
        Heartbeat { worker, tokens, lease_ms: 30_000, progress, run_times: ran, report: None };
    store.heartbeat(extend).await.expect("heartbeat");
    store.task_counts().await.expect("counts");

    let sessions = fixture.server.connect().await;
    let sessions = sessions
        .query(
            "SELECT ssl, query LIKE 'LISTEN%' FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) \
             WHERE application_name = 'tidegate'",
            &[],
        )
        .await
        .expect("sessions");
    let sessions: Vec<(bool, bool)> = sessions.iter().map(|row| (row.get(0), row.get(1))).collect();
    // One of the pool, for heartbeats, for reads and for notifications.
    assert!(sessions.len() >= 4, "{sessions:?}");
    assert!(sessions.iter().all(|(is_encrypted, _)| *is_encrypted), "{sessions:?}");
    assert_eq!(sessions.iter().filter(|(_, listens)| *listens).count(), 1, "{sessions:?}");
}

#[tokio::test]
async fn passfile_password_is_read_for_each_connection() {
    let fixture = Fixture::start().await;
    let line = |password: &str| format!("localhost:*:*:by_password:{password}\n");
    let file = fixture.write("passwords", &line("first"));
    let (ca, passwords) = (fixture.path("ca.crt"), fixture.path("passwords"));
    let parameters = format!(
        "sslmode=verify-full&sslrootcert={ca}&channel_binding=require&passfile={passwords}"
    );
    let url = fixture.url("by_password", &parameters);
    let store = Postgres::connect(&url, Options::default()).await.expect("the first password");
    store.migrate().await.expect("migrate");

    let admin = fixture.server.connect().await;
    let rotate = "ALTER USER by_password PASSWORD 'second'; \
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'by_password'";
    admin.batch_execute(rotate).await.expect("rotate");
    // The first calls can meet connections that are just being closed.
    let refused = wait::until_some_async("the server refuses the old password", async || {
        let refused = store.submit(submission()).await.expect_err("the old password");
        refused.to_string().contains("password").then_some(refused)
    })
    .await;
    assert!(refused.is_retryable(), "{refused}");
    assert!(!refused.to_string().contains("first"), "{refused}");
    let source = format!("the password came from the password file {passwords} of passfile");
    assert!(refused.to_string().contains(&source), "{refused}");
    fixture.write("passwords", &line("second"));
    store.submit(submission()).await.expect("the new password");

    set_mode(&file, 0o644);
    fixture.check_refused(&url, &["asks for a password", "PGPASSWORD", "chmod 600"]).await;
    fixture.write("passwords", "other:*:*:by_password:second\n");
    let key = format!("localhost:{}:postgres:by_password", fixture.server.port());
    fixture.check_refused(&url, &[&passwords, "no line that matches", &key]).await;
    fs::remove_file(&file).expect("remove the file");
    fixture.check_refused(&url, &[&passwords, "of passfile", "does not exist"]).await;
    let wrong = url.replace("by_password@", "by_password:se%63ret@");
    let refused =
        Postgres::connect(&wrong, Options::default()).await.expect_err("a wrong password");
    assert!(!format!("{refused:?}").contains("secret"), "{refused:?}");
    assert!(refused.to_string().contains("the password came from the URL"), "{refused}");
    assert!(!format!("{store:?}").contains("second"), "{store:?}");
}

/// A server with TLS reports a connection that its client does not close in order.
#[tokio::test]
async fn dropped_store_closes_every_connection_in_order() {
    let fixture = Fixture::start().await;
    let store = fixture.connect("sslmode=require").await.expect("connect");
    store.migrate().await.expect("migrate");
    let listening = store.clone();
    let changed = tokio::spawn(async move { listening.wait_for_notification().await });
    // The first wake-up comes from the LISTEN itself.
    tokio::time::timeout(PATIENCE, changed).await.expect("listening").expect("no panic");
    store.submit(submission()).await.expect("submit");
    store.task_counts().await.expect("counts");
    let admin = fixture.server.connect().await;
    let sessions = async || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidegate'";
        admin.query_one(sql, &[]).await.expect("sessions").get::<_, i64>(0)
    };
    assert!(sessions().await >= 3, "one of the pool, for reads and for notifications");
    drop(store);
    wait::until_async("all sessions end", async || sessions().await == 0).await;
    let log = fixture.server.log();
    assert!(!log.contains("reset by peer"), "{log}");
}
