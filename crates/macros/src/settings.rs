//! What stands in the brackets of the attribute.

use proc_macro2::TokenStream;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{LitInt, LitStr};

use crate::duration;

#[derive(Default)]
pub(crate) struct TaskSettings {
    pub(crate) kind: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) timeout_ms: Option<u64>,
    /// Settings that are numbers: the name of the method, and the number.
    pub(crate) numeric_settings: Vec<(String, u32)>,
    pub(crate) window_start_ms: Option<i64>,
    pub(crate) window_end_ms: Option<i64>,
}

impl TaskSettings {
    pub(crate) fn parse(tokens: TokenStream) -> syn::Result<Self> {
        let span = proc_macro2::Span::call_site();
        let mut settings = Self::default();
        syn::meta::parser(|meta| settings.apply_setting(&meta)).parse2(tokens)?;
        let (start, end) = (settings.window_start_ms, settings.window_end_ms);
        if start.is_some() != end.is_some() {
            return Err(syn::Error::new(span, "give window_start and window_end, or neither"));
        }
        if start.is_some() && start == end {
            return Err(syn::Error::new(span, "the window ends as it starts; it is never open"));
        }
        Ok(settings)
    }

    fn apply_setting(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "kind" => self.kind = Some(parse_string(meta, parse_non_empty)?),
            "queue" => self.queue = Some(parse_string(meta, parse_non_empty)?),
            "timeout" => self.timeout_ms = Some(parse_string(meta, duration::parse_duration_ms)?),
            "window_start" => {
                self.window_start_ms = Some(parse_string(meta, duration::parse_time_of_day_ms)?)
            }
            "window_end" => {
                self.window_end_ms = Some(parse_string(meta, duration::parse_time_of_day_ms)?)
            }
            "max_concurrent"
            | "kind_concurrency"
            | "max_attempts"
            | "max_crashes"
            | "remove_on_completed_days"
            | "remove_on_failed_days" => {
                let number: LitInt = meta.value()?.parse()?;
                self.numeric_settings.push((name, number.base10_parse()?));
            }
            _ => {
                return Err(meta.error(
                    "unknown setting; there are kind, queue, max_concurrent, kind_concurrency, \
                     max_attempts, max_crashes, timeout, window_start, window_end, \
                     remove_on_completed_days and remove_on_failed_days",
                ));
            }
        }
        Ok(())
    }
}

/// Reads a string, and complains at its place.
fn parse_string<T>(
    meta: &ParseNestedMeta<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> syn::Result<T> {
    let literal: LitStr = meta.value()?.parse()?;
    parse(&literal.value()).map_err(|error| syn::Error::new(literal.span(), error))
}

fn parse_non_empty(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a name has at least one character".to_owned()),
        text => Ok(text.to_owned()),
    }
}
