//! Finds the known word that a misspelled word stands for.

/// Returns that one of `known` that is most similar to `word`, regardless of case. Returns `None` if its similarity, from
/// 0 to 1, is below `min_similarity`.
pub(crate) fn most_similar<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    min_similarity: f64,
) -> Option<&'a str> {
    let word = word.to_lowercase();
    let similarity = |known: &str| strsim::normalized_damerau_levenshtein(&word, &known.to_lowercase());
    let weighted = known.into_iter().map(|known| (similarity(known), known));
    let (similarity, nearest) = weighted.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (similarity >= min_similarity).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_word_is_found() {
        let known = ["verify", "inspect", "gzip"];
        assert_eq!(most_similar("verfy", known, 0.6), Some("verify"));
        assert_eq!(most_similar("GZIP", known, 1.0), Some("gzip"));
        assert_eq!(most_similar("blosc", known, 0.6), None);
        assert_eq!(most_similar("verfy", [], 0.0), None);
    }
}
