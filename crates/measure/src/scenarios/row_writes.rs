//! Counts the rows that PostgreSQL has written, by the statistics of the server.

use std::time::Duration;

use tidegate_engine::time;
use tidegate_store::StoreLocation;
use tokio_postgres::{Client, NoTls};

use super::target::Target;

/// Rows inserted, updated and deleted so far; none of a store that does not count them. A server
/// tells what a connection has written when that ends, so all others have to be gone.
pub(super) async fn row_writes(target: &Target) -> anyhow::Result<Option<u64>> {
    let StoreLocation::Postgres(url) = &target.place else {
        return Ok(None);
    };
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    while other_connections(&client).await? > 0 {
        time::sleep(Duration::from_millis(20)).await;
    }
    let writes = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
                  FROM pg_stat_user_tables WHERE schemaname = 'tidegate'";
    let writes: i64 = client.query_one(writes, &[]).await?.get(0);
    Ok(u64::try_from(writes).ok())
}

async fn other_connections(client: &Client) -> anyhow::Result<i64> {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                  AND application_name = 'tidegate' AND pid <> pg_backend_pid()";
    Ok(client.query_one(others, &[]).await?.get(0))
}
