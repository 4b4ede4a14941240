//! Commands on a PostgreSQL with TLS.

use tidegate_testkit::authority::Authority;
use tidegate_testkit::own_server::OwnServer;
use tidegate_testkit::wait;

use crate::common::Shell;

const SETTINGS: [&str; 4] =
    ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key", "fsync=off"];

const ACCESS: &str = "local all all trust\nhostssl all all all trust\n";

fn server() -> OwnServer {
    let server = OwnServer::init(&SETTINGS);
    let (certificate, key) = Authority::new("private CA").server("localhost");
    server.write("server.crt", &certificate);
    server.write("server.key", &key);
    server.write("pg_hba.conf", ACCESS);
    server.start();
    server
}

/// A server with TLS reports a connection that its client does not close in order.
#[tokio::test]
async fn command_closes_its_connections_in_order() {
    let (server, shell) = (server(), Shell::new());
    let port = server.port();
    let url = format!("postgres://postgres@localhost:{port}/postgres?sslmode=require");
    shell.run_ok(&["migrate", "--store", &url]);
    shell.run_ok(&["task", "list", "--store", &url]);
    let hint = shell.run(&["workers", "--store", &url.replace("postgres@", "postgres:secret@")]);
    let command = format!("start one with `tidegate worker --store '{url}'`");
    assert!(hint.contains(&command) && !hint.contains("secret"), "{hint}");
    let refused = shell.run(&["task", "show", "1", "--store", &url]);
    assert!(refused.starts_with("exit 1"), "{refused}");
    let admin = server.connect().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidegate'";
    wait::until_async("all sessions end", async || {
        admin.query_one(sql, &[]).await.expect("sessions").get::<_, i64>(0) == 0
    })
    .await;
    let log = server.log();
    assert!(!log.contains("reset by peer"), "{log}");
}
