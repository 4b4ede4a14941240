//! A small web server that does what its path says.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::common::Shell;

/// A server on a free port of this machine.
#[derive(Debug)]
pub(crate) struct TestWebServer {
    port: u16,
}

impl TestWebServer {
    /// It ends with the process.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("accept");
                // A caller that goes away ends its own call.
                thread::spawn(move || drop(serve(stream)));
            }
        });
        Self { port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let (head, body) = read(&stream)?;
    let target = head.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query.replace("%5C", "\\");
    let large = "x".repeat(300 << 10);
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    let location = format!("location: {query}\r\n");
    let echo = format!("{head}{body}");
    let (status, headers, body) = match path {
        "/text" => ("200", "", "hello"),
        "/to" => ("302", &*location, ""),
        "/to307" => ("307", &*location, ""),
        "/echo" => ("200", "", &*echo),
        "/large" => ("200", "", &*large),
        "/headers" => ("200", &*many, ""),
        "/busy" => ("503", "retry-after: 1800\r\n", ""),
        "/silent" => return stream.read(&mut [0]).map(drop),
        _ => (path.strip_prefix("/status/").unwrap_or("404"), "", ""),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// The head of a request with its empty line, and the body.
fn read(stream: &TcpStream) -> std::io::Result<(String, String)> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            break;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body)?;
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}

/// Serves the certificate in the folder of the shell by TLS; gives the port.
pub(crate) fn start_tls(shell: &Shell) -> (u16, Child) {
    let mut server = Command::new("openssl")
        .args(["s_server", "-accept", "127.0.0.1:0", "-www"])
        .args(["-cert", "cert.pem", "-key", "key.pem"])
        .current_dir(shell.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("start openssl");
    let lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let port = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("ACCEPT ")?.rsplit(':').next()?.trim().parse().ok());
    (port.expect("the server says where it listens"), server)
}
