//! What stands in the brackets of the attribute.

use proc_macro2::TokenStream;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{LitInt, LitStr};

use crate::duration;

#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) kind: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) timeout_ms: Option<u64>,
    /// Settings that are numbers: the name of the method, and the number.
    pub(crate) numbers: Vec<(String, u32)>,
    pub(crate) window_start_ms: Option<i64>,
    pub(crate) window_end_ms: Option<i64>,
}

impl Settings {
    pub(crate) fn parse(tokens: TokenStream) -> syn::Result<Self> {
        let span = proc_macro2::Span::call_site();
        let mut settings = Self::default();
        syn::meta::parser(|meta| settings.set(&meta)).parse2(tokens)?;
        let (start, end) = (settings.window_start_ms, settings.window_end_ms);
        if start.is_some() != end.is_some() {
            return Err(syn::Error::new(span, "give window_start and window_end, or neither"));
        }
        if start.is_some() && start == end {
            return Err(syn::Error::new(span, "the window ends as it starts; it is never open"));
        }
        Ok(settings)
    }

    fn set(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "kind" => self.kind = Some(text(meta, not_empty)?),
            "queue" => self.queue = Some(text(meta, not_empty)?),
            "timeout" => self.timeout_ms = Some(text(meta, duration::millis)?),
            "window_start" => self.window_start_ms = Some(text(meta, duration::time_of_day)?),
            "window_end" => self.window_end_ms = Some(text(meta, duration::time_of_day)?),
            "max_concurrent"
            | "max_running"
            | "max_attempts"
            | "max_deaths"
            | "remove_on_completed_days"
            | "remove_on_failed_days" => {
                let number: LitInt = meta.value()?.parse()?;
                self.numbers.push((name, number.base10_parse()?));
            }
            _ => {
                return Err(meta.error(
                    "unknown setting; there are kind, queue, max_concurrent, max_running, \
                     max_attempts, max_deaths, timeout, window_start, window_end, \
                     remove_on_completed_days and remove_on_failed_days",
                ));
            }
        }
        Ok(())
    }
}

/// Reads a string, and complains at its place.
fn text<T>(meta: &ParseNestedMeta<'_>, read: impl Fn(&str) -> Result<T, String>) -> syn::Result<T> {
    let literal: LitStr = meta.value()?.parse()?;
    read(&literal.value()).map_err(|error| syn::Error::new(literal.span(), error))
}

fn not_empty(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a name has at least one character".to_owned()),
        text => Ok(text.to_owned()),
    }
}
