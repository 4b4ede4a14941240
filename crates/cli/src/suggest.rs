//! Finds what a mistyped word may mean.

/// The known word that is nearest, if one is near.
pub(crate) fn suggest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let nearness = |known: &&str| strsim::jaro_winkler(word, known);
    let nearest = known.iter().copied().max_by(|a, b| nearness(a).total_cmp(&nearness(b)))?;
    (nearness(&nearest) > 0.8).then_some(nearest)
}

/// Says that there is nothing of this name, and which may be meant or how to see all.
pub(crate) fn not_found_message(what: &str, word: &str, known: &[&str], list: &str) -> String {
    not_found_message_for(what, word, suggest(word, known), list)
}

/// The same where it is known what may be meant.
pub(crate) fn not_found_message_for(
    what: &str,
    word: &str,
    meant: Option<&str>,
    list: &str,
) -> String {
    match meant {
        Some(meant) => format!("there is no {what} {word:?}; did you mean {meant:?}?"),
        None => format!("there is no {what} {word:?}; `tidegate {list}` lists all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestion_is_made_only_for_similar_words() {
        assert_eq!(suggest("cuont", &["kind", "count"]), Some("count"));
        assert_eq!(suggest("zebra", &["kind", "count"]), None);
        assert_eq!(suggest("x", &[]), None);
    }
}
