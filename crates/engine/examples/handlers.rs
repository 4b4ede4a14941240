//! Every way to write a handler, on a store in memory:
//!
//!     cargo run -p tidegate-engine --example handlers
//!
//! A handler gets a [`Context`] and a payload of its own type, and returns what is kept as the
//! task's result, or a [`Failure`] that says what should happen next.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_engine::{
    Client, Context, Failure, Handler, KindConfig, Shutdown, ShutdownPhase, Task, TaskId, Worker,
    time,
};
use tidegate_store::memory::Memory;
use tokio::sync::watch;

#[derive(Debug, Serialize, Deserialize)]
struct Mail {
    to: String,
    text: String,
}

/// 1. A function. What it needs besides the payload, a closure brings along. Any error becomes
///    a failure that is tried again; here the first attempt fails and the second succeeds.
async fn count_words(context: Context, text: String) -> Result<usize, Failure> {
    if context.attempt_number() == 1 {
        return Err(Failure::retry_in("the dictionary is being updated", Duration::ZERO));
    }
    Ok(text.split_whitespace().count())
}

/// 2. An attribute on a function: the function becomes a type that knows its kind and how its
///    tasks are treated. However many workers there are, two mails are sent at once.
#[tidegate_engine::task(kind = "mail", max_concurrent = 2, max_attempts = 3, timeout = "30s")]
async fn send_mail(context: Context, mail: Mail) -> Result<String, Failure> {
    if !mail.to.contains('@') {
        return Err(Failure::fatal(format!("{:?} is no address", mail.to)));
    }
    context.progress(50, "connected");
    Ok(format!("sent {} letters to {}", mail.text.len(), mail.to))
}

/// 3. A trait, for handlers with state and for whoever likes to see everything.
struct Greet {
    greeting: String,
    greeted: watch::Sender<u32>,
}

impl Handler for Greet {
    const KIND: &'static str = "greet";
    type Payload = String;
    type Output = String;

    fn config() -> KindConfig {
        KindConfig::new(Self::KIND).kind_concurrency(4).remove_on_completed_days(7)
    }

    async fn run(&self, _context: Context, name: String) -> Result<String, Failure> {
        self.greeted.send_modify(|greeted| *greeted += 1);
        Ok(format!("{}, {name}!", self.greeting))
    }
}

#[tokio::main]
async fn main() -> tidegate_engine::Result<()> {
    let store = Arc::new(Memory::new());
    let client = Client::new(store.clone(), store.clone());
    let (greeted, _) = watch::channel(0);

    let worker = Worker::builder(store)
        .concurrency(8)
        .handle("count_words", count_words)
        .register(send_mail)
        .register(Greet { greeting: "Hello".to_owned(), greeted })
        .build()?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));

    let mail = |to: &str| Mail { to: to.to_owned(), text: "the tide is high".to_owned() };
    let tasks = [
        Task::new("count_words", &"time and tide wait for no man"),
        send_mail::task(&mail("someone@example.org")),
        send_mail::task(&mail("nobody")),
        Greet::task(&"world".to_owned()).priority(10),
        Task::new("greet", &42).job("mistakes"),
    ];
    let submitted = client.submit_many(tasks).await?;
    for task in submitted {
        show(&client, task.task).await?;
    }

    shutdown.drain();
    shutdown.wait_for_phase(ShutdownPhase::Draining).await;
    let summary = running.await.expect("the worker does not panic")?;
    println!("{summary:?}");
    Ok(())
}

/// Waits for a task and prints how it ended.
async fn show(client: &Client, id: TaskId) -> tidegate_engine::Result<()> {
    loop {
        let Some(task) = client.task(id).await? else {
            return Ok(());
        };
        if task.state.is_final() {
            let result = task.result.map(|result| String::from_utf8_lossy(&result).into_owned());
            let text = result.or(task.error).unwrap_or_default();
            println!("{id} {:<12} {:<10} {text}", task.kind, task.state);
            return Ok(());
        }
        time::sleep(Duration::from_millis(5)).await;
    }
}
