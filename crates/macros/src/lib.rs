//! The attribute that makes a function a task handler. Use it as `tidegate_engine::task`.

use proc_macro::TokenStream;

mod duration;
mod expand;
mod settings;

/// Makes an `async fn(Context, Payload) -> Result<Output, E>` a handler: a unit struct of the
/// function's name that implements `tidegate_engine::Handler`, with a function `task(&payload)`
/// that makes a task for it.
///
/// | setting | meaning | default |
/// |---|---|---|
/// | `kind = "mail"` | the kind it handles | the function's name |
/// | `queue = "slow"` | the queue of tasks that name none | `default` |
/// | `max_concurrent = 10` | tasks that run at once over all workers | unlimited |
/// | `kind_concurrency = 4` | tasks that run at once on one worker | its permits |
/// | `max_attempts = 3` | attempts, the first included | 5 |
/// | `max_crashes = 10` | deaths of its process after which a task is quarantined | 3 |
/// | `timeout = "30s"` | how long an attempt may run: `ms`, `s`, `m`, `h` or `d` | no end |
/// | `window_start = "22:00"`, `window_end = "06:00"` | when tasks may be claimed, UTC | always |
/// | `remove_on_completed_days = 7` | days a completed task is kept, to the end (UTC) of the last | for ever |
/// | `remove_on_failed_days = 30` | the same of a failed or cancelled task | for ever |
#[proc_macro_attribute]
pub fn task(settings: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand_task(settings.into(), function.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
