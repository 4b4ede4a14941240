//! The reference keeps its own rules.

use std::sync::OnceLock;

use async_trait::async_trait;
use tidegate_store::memory::Memory;
use tidegate_testkit::conformance::{Backend, Clock, Handle};

#[derive(Default)]
struct InMemory(OnceLock<Memory>);

#[async_trait]
impl Backend for InMemory {
    fn create() -> Self {
        Self::default()
    }

    async fn open(&self, clock: Clock) -> Handle {
        Handle::new(self.0.get_or_init(|| Memory::with_clock(move || clock())).clone())
    }
}

tidegate_testkit::conformance_suite!(InMemory);
