//! The raw loop of an idle queue on PostgreSQL: one connection inserts a task and says so, another
//! hears of it, and a third claims the task.

use std::fmt;
use std::future::poll_fn;

use futures_util::future::try_join4;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Error, NoTls, Statement};

use super::postgres::{BatchOutcomes, BatchStatements, INSERT_PAYLOADS, SCHEMA, connect};
use super::{DUE, PAYLOAD};
use crate::clock::Stopwatch;

const LISTEN: &str = "listen tidegate_raw";
const NOTIFY: &str = "notify tidegate_raw";

/// Three connections to one database with the tables of the loop.
pub struct RawStartLatency {
    submitter: Client,
    insert: Statement,
    claimer: Client,
    _listener: Client,
    notifications: UnboundedReceiver<()>,
}

impl fmt::Debug for RawStartLatency {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RawPickUp").finish_non_exhaustive()
    }
}

impl RawStartLatency {
    /// Connects to the database at `url` and makes the tables new and empty.
    pub async fn open(url: &str) -> Result<Self, Error> {
        let (putter, claimer) = (connect(url).await?, connect(url).await?);
        putter.batch_execute(SCHEMA).await?;
        let (listener, mut connection) = tokio_postgres::connect(url, NoTls).await?;
        let (tell, notices) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if matches!(message, AsyncMessage::Notification(_)) && tell.send(()).is_err() {
                    return;
                }
            }
        });
        listener.batch_execute(LISTEN).await?;
        let put = putter.prepare(INSERT_PAYLOADS).await?;
        Ok(Self {
            submitter: putter,
            insert: put,
            claimer,
            _listener: listener,
            notifications: notices,
        })
    }

    /// Inserts tasks one after the other, each when the one before is done; gives the seconds from
    /// each insert to its claim.
    pub async fn measure(&mut self, tasks: u32) -> Result<Vec<f64>, Error> {
        let turn = BatchStatements::new(&self.claimer, 1).await?;
        let mut all = Vec::new();
        for _ in 0..tasks {
            let stopwatch = Stopwatch::start();
            let payloads = vec![PAYLOAD.as_slice()];
            let params: [&(dyn ToSql + Sync); 2] = [&DUE, &payloads];
            let put = async {
                let begin = self.submitter.batch_execute("begin");
                let put = self.submitter.query(&self.insert, &params);
                let wake = self.submitter.batch_execute(NOTIFY);
                let commit = self.submitter.batch_execute("commit");
                try_join4(begin, put, wake, commit).await.map(drop)
            };
            let claim = async {
                loop {
                    self.notifications.recv().await;
                    let claimed = turn.run(&BatchOutcomes::default()).await?;
                    if let Some(row) = claimed.first() {
                        return Ok((stopwatch.seconds(), row.get(0)));
                    }
                }
            };
            let ((), (seconds, id)) = futures_util::future::try_join(put, claim).await?;
            all.push(seconds);
            turn.complete(&[id]).await?;
        }
        Ok(all)
    }
}
