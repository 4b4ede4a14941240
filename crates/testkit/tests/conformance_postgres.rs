//! The store on PostgreSQL keeps the rules of the reference.

use async_trait::async_trait;
use tidegate_store::postgres::{Options, Postgres};
use tidegate_testkit::conformance::{Backend, Clock, Handle};
use tidegate_testkit::postgres::{Database, Server};

struct InPostgres {
    url: String,
    /// Dropped with the value; a database that another process made is not ours to drop.
    _database: Option<Database>,
}

#[async_trait]
impl Backend for InPostgres {
    fn create() -> Self {
        let database = Server::shared().database();
        Self { url: database.url(), _database: Some(database) }
    }

    async fn open(&self, clock: Clock) -> Handle {
        let options = Options { pool_size: 4, clock: Some(clock), ..Options::default() };
        Handle::new(Postgres::connect(&self.url, options).await.expect("PostgreSQL answers"))
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    fn at(address: &str) -> Option<Self> {
        Some(Self { url: address.to_owned(), _database: None })
    }
}

tidegate_testkit::conformance_suite!(InPostgres);
