//! A server that keeps its callers waiting until they are as many as they should be.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tidegate_core::NewTask;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// It answers nobody before so many call at once, and then everybody.
#[derive(Debug)]
pub(crate) struct Barrier {
    address: SocketAddr,
    state: Arc<Mutex<BarrierState>>,
}

#[derive(Debug)]
struct BarrierState {
    expected: usize,
    waiting: Vec<TcpStream>,
}

impl Barrier {
    /// It ends with the process.
    pub(crate) fn new(expected: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(BarrierState { expected, waiting: Vec::new() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("accept");
                // All of a small request comes at once; what is not read would cut the answer off.
                let _ = stream.read(&mut [0; 4096]);
                let mut state = shared.lock().expect("no panic");
                state.waiting.push(stream);
                if state.waiting.len() >= state.expected {
                    state.open();
                }
            }
        });
        Self { address, state }
    }

    /// Answers all that wait and come, however many.
    pub(crate) fn open(&self) {
        self.state.lock().expect("no panic").open();
    }

    /// What a worker may call.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// A task that calls it.
    pub(crate) fn task(&self) -> NewTask {
        let payload = format!("{{\"url\":\"http://{}/\",\"timeout_ms\":60000}}", self.address);
        NewTask::new("http", payload)
    }
}

impl BarrierState {
    fn open(&mut self) {
        self.expected = 0;
        for mut stream in self.waiting.drain(..) {
            // A caller that is gone, as a killed worker is, needs no answer.
            let _ = stream.write_all(ANSWER);
        }
    }
}
