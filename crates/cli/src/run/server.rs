//! The server that a run file brings along, and `test-server` runs: an API that minds how many call it at once.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_engine::time;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::run_file::ServerPlan;

/// Bytes of a request that are read.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<ServerState>,
    accept: JoinHandle<()>,
}

#[derive(Debug)]
struct ServerState {
    plan: ServerPlan,
    calls: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    concurrent: AtomicU32,
    concurrent_max: AtomicU32,
}

/// What a server has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerStats {
    /// Calls in all.
    pub(crate) calls: u64,
    /// Calls it refused because too many came at once.
    pub(crate) refused: u64,
    /// Calls it failed on purpose.
    pub(crate) failed: u64,
    /// The most calls at once.
    pub(crate) concurrent_max: u32,
    /// The most it takes.
    pub(crate) calls_max: Option<u32>,
}

impl Server {
    /// Listens on a free port of this machine.
    pub(crate) async fn start(plan: ServerPlan) -> io::Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, 0).into(), plan).await
    }

    /// Listens on an address.
    pub(crate) async fn start_on(address: SocketAddr, plan: ServerPlan) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let state = Arc::new(ServerState {
            plan,
            calls: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            concurrent: AtomicU32::new(0),
            concurrent_max: AtomicU32::new(0),
        });
        let accept = tokio::spawn(accept(listener, state.clone()));
        Ok(Self { address, state, accept })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen so far.
    pub(crate) fn stats(&self) -> ServerStats {
        ServerStats {
            calls: self.state.calls.load(Ordering::Relaxed),
            refused: self.state.refused.load(Ordering::Relaxed),
            failed: self.state.failed.load(Ordering::Relaxed),
            concurrent_max: self.state.concurrent_max.load(Ordering::Relaxed),
            calls_max: self.state.plan.calls_max,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<ServerState>) {
    // A listener on loopback fails only when the process has no file handles left; calls then
    // fail and are tried again, so a pause is enough.
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, state.clone()))),
            Err(_) => time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A caller that goes away ends its own call and nothing else.
async fn serve(mut stream: TcpStream, state: Arc<ServerState>) -> io::Result<()> {
    read_head(&mut stream).await?;
    let status = {
        let call = Call::begin(&state);
        call.answer().await
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

async fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::with_capacity(512);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 || head.len() > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(())
}

/// One call under way.
struct Call<'a> {
    state: &'a ServerState,
    number: u64,
    concurrent: u32,
}

impl<'a> Call<'a> {
    fn begin(state: &'a ServerState) -> Self {
        let concurrent = state.concurrent.fetch_add(1, Ordering::SeqCst) + 1;
        state.concurrent_max.fetch_max(concurrent, Ordering::SeqCst);
        let number = state.calls.fetch_add(1, Ordering::Relaxed) + 1;
        Self { state, number, concurrent }
    }

    async fn answer(&self) -> &'static str {
        let plan = &self.state.plan;
        if plan.calls_max.is_some_and(|most| self.concurrent > most) {
            self.state.refused.fetch_add(1, Ordering::Relaxed);
            return "503 Too Many At Once";
        }
        let span = plan.answer_ms_max - plan.answer_ms_min + 1;
        let wait_ms =
            plan.answer_ms_min + pseudo_random(plan.seed.wrapping_add(self.number)) % span;
        time::sleep(Duration::from_millis(wait_ms)).await;
        if plan.fail_every.is_some_and(|every| self.number.is_multiple_of(every.into())) {
            self.state.failed.fetch_add(1, Ordering::Relaxed);
            return "500 As Asked";
        }
        "200 OK"
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.state.concurrent.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Unrelated numbers for neighbouring calls, the same in every run.
fn pseudo_random(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}
