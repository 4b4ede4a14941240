//! The server that the other tests stand on.

use tidegate_testkit::postgres::{Database, Server};
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

async fn current_database(database: &Database) -> String {
    let client = connect(&database.url()).await;
    let one: i32 = client.query_one("select 1", &[]).await.expect("select 1").get(0);
    assert_eq!(one, 1);
    client.query_one("select current_database()::text", &[]).await.expect("name").get(0)
}

#[tokio::test]
async fn test_databases_are_separate() {
    let server = Server::shared();
    let (one, other) = (server.database(), server.database());
    assert_ne!(one.name(), other.name());
    assert_eq!(current_database(&one).await, one.name());
    assert_eq!(current_database(&other).await, other.name());
}

#[tokio::test]
async fn test_database_is_dropped_with_its_value_while_clients_are_connected() {
    let server = Server::shared();
    let database = server.database();
    let _still_connected = connect(&database.url()).await;
    let name = database.name().to_owned();
    drop(database);
    let client = connect(&server.url("postgres")).await;
    let left: i64 = client
        .query_one("select count(*) from pg_database where datname = $1", &[&name])
        .await
        .expect("count")
        .get(0);
    assert_eq!(left, 0);
}

#[test]
fn test_database_is_created_outside_of_a_runtime() {
    let database = Server::shared().database();
    assert!(database.url().contains(database.name()));
}

#[tokio::test]
async fn test_server_accepts_six_hundred_connections() {
    let client = connect(&Server::shared().url("postgres")).await;
    let shown: String = client.query_one("show max_connections", &[]).await.expect("show").get(0);
    assert_eq!(shown, "600");
}
